"""Two machines under torchrun: they train, and when the cable between them is cut every rank says so and ends."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import compiled
from tests.support.launch import ROOT
from tests.support.machines import Machine, two_machines, why_not

pytestmark = [pytest.mark.dist, pytest.mark.timeout(400)]

WORKER = Path(__file__).parent / "workers" / "machines.py"
PER_MACHINE = 2
RANKS = 2 * PER_MACHINE
STEPS = 3
LIMIT = 150.0  # seconds; nothing here takes more than a few, but the machine may be busy


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    if reason := why_not():
        pytest.skip(f"NOT TESTED: two machines. {reason}")
    with two_machines() as pair:
        yield pair


def train(machines: tuple[Machine, Machine], folder: Path, timeout: float, *, cut: bool) -> list[tuple[int, str]]:
    """How torchrun ended on both machines, and what was said there."""
    path = compiled.compile_to(folder / "x.py", compiled.ONE_F_ONE_B, p=RANKS, m=4)
    go_on = folder / "go on"
    logs = [folder / "a", folder / "b"]
    with contextlib.ExitStack() as stack:
        processes = []
        for number, (machine, log) in enumerate(zip(machines, logs, strict=True)):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"]
            torchrun += [f"--nproc-per-node={PER_MACHINE}", f"--master-addr={machines[0].address}"]
            command = [*torchrun, "--master-port=29555", str(WORKER), str(path), str(STEPS), str(timeout), str(go_on)]
            environment = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": machine.device,
            }
            out = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(machine.command(*command), env=environment, stdout=out, stderr=out)
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
            processes.append(process)
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and not any("WAITING" in log.read_text() for log in logs):
            time.sleep(0.1)
        if cut:
            machines[0].cut()
        go_on.touch()
        deadline = time.monotonic() + LIMIT
        codes = [process.wait(max(1.0, deadline - time.monotonic())) for process in processes]
    return [(code, log.read_text(errors="replace")) for code, log in zip(codes, logs, strict=True)]


def test_two_machines_train(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    for code, said in train(machines, tmp_path, 90, cut=False):
        assert code == 0, said
        assert said.count(f"STEP {STEPS - 1}") == PER_MACHINE


def test_a_cable_that_is_cut_in_a_step_ends_every_rank(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    """The second machine cannot even ask the store, whose host is the first."""
    (first, here), (second, there) = train(machines, tmp_path, 15, cut=True)
    assert first, here
    assert second, there
    for said in (here, there):
        assert said.count("STEP 0") == PER_MACHINE
        assert "STEP 1" not in said
        found = re.findall(r"^FAILED rank (\d)\n(.*?)^END$", said, re.MULTILINE | re.DOTALL)
        messages = {int(rank): message for rank, message in found}
        assert messages, said  # torchrun may end the other one before it has printed, not before it has said why
        for rank, message in messages.items():
            assert message.startswith("pipeline one_f_one_b(p=4, m=4): "), message
            assert "(test.sched:" in message
            assert f"this is rank {rank}" in message
    for rank in range(RANKS):
        said = here if rank < PER_MACHINE else there
        assert re.search(rf"^pipeline one_f_one_b\(p=4, m=4\): .*rank {rank} .* \(test.sched:\d", said, re.MULTILINE), (
            said
        )
    assert "nothing happened for 15 s" in here
    assert "leads to rank 2, which does not answer" in here
    assert "torchrun's agent, which holds the ranks' store, does not answer" in there
