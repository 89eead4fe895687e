"""Two network namespaces as two machines, with a cable between them that can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A network namespace. `device`: its end of the cable; `address`: of that."""

    name: str
    device: str
    address: str

    def command(self, *command: str) -> list[str]:
        """A command line that runs there."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        _ip("-n", self.name, "link", "set", self.device, "down")


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines that reach each other; at the end they are gone, with all that still runs there."""
    mark = uuid.uuid4().hex[:6]
    pair = (
        Machine(f"pipedsl-{mark}-a", f"pd{mark}a", "10.213.77.1"),
        Machine(f"pipedsl-{mark}-b", f"pd{mark}b", "10.213.77.2"),
    )
    made: list[Machine] = []
    try:
        for machine in pair:
            _ip("netns", "add", machine.name)
            made.append(machine)
        _ip("link", "add", pair[0].device, "type", "veth", "peer", "name", pair[1].device)
        for machine in pair:
            _ip("link", "set", machine.device, "netns", machine.name)
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.device)
            for device in ("lo", machine.device):
                _ip("-n", machine.name, "link", "set", device, "up")
        yield pair
    finally:
        for machine in made:
            left = subprocess.run(["ip", "netns", "pids", machine.name], capture_output=True, text=True, timeout=30)
            for process in left.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), 9)
            _ip("netns", "del", machine.name)


def why_not() -> str:
    """Why there cannot be two machines here; empty where there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2), which makes network namespaces"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with two_machines():
            return ""
    except (RuntimeError, subprocess.SubprocessError) as error:
        return f"network namespaces cannot be made here: {error}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
