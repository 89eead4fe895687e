"""The file that a rank leaves when a step has failed, for `pipedsl post-mortem` to put all ranks' together.

Whatever may be wrong with its folder - missing, full, read-only, on a server that is silent - the step fails as it
would have without.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch

from pipedsl.runtime.files import write_whole
from pipedsl.runtime.plan import COMPUTE_KINDS, Plan, PlannedCall
from pipedsl.runtime.position import RecordedPosition, Report
from pipedsl.runtime.wire import Store, say

_MOST_TO_WRITE = 10.0  # seconds that writing the file may take; torchrun and Slurm kill 30 after SIGTERM
_JOB = ("RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_PROCID")


def post_mortem_folder(given: str | os.PathLike[str] | None) -> str:
    """Where state files go: what is given, or else the environment's; empty for nowhere."""
    if given is not None and not isinstance(given, str | bytes | os.PathLike):
        raise TypeError(f"post_mortem must be a folder's path, not a {type(given).__name__}")
    folder = os.environ.get("PIPEDSL_POST_MORTEM", "") if given is None else os.fsdecode(given)
    return os.path.abspath(folder) if folder else ""


class PostMortem:
    """One rank's state file. `store`: where all ranks of this pipeline find one name for their files."""

    def __init__(self, folder: str, plan: Plan, rank: int, store: Store) -> None:
        self.position = RecordedPosition(plan.source)
        self._plan = plan
        self._rank = rank
        own = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"
        name = store.compare_set("run", "", own)
        self._run = name.decode() if isinstance(name, bytes) else str(name)
        self._path = os.path.join(folder, f"{self._run}.rank{rank}.json")
        self._writing = threading.Lock()

    def leave(self, error: str, failure: Report | None, answers: Mapping[int, Report]) -> None:
        """Write the file, in time or not; what is wrong is a line on standard error.

        `failure` as far as it is known, `answers`: what other ranks said of where they stand.
        """
        try:
            text = json.dumps(self._state(error, failure, answers), indent=1) + "\n"
            # A folder on a server that is silent holds up who writes there, for ever.
            writer = threading.Thread(target=self._write, args=(text,), name="pipedsl-post-mortem", daemon=True)
            writer.start()
            writer.join(_MOST_TO_WRITE)
            if writer.is_alive():
                self._complain(f"it takes more than {_MOST_TO_WRITE:g} s")
        except Exception as problem:
            self._complain(f"{type(problem).__name__}: {problem}")

    def _write(self, text: str) -> None:
        try:
            with self._writing:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                write_whole(self._path, text)
        except Exception as problem:
            self._complain(str(problem))

    def _complain(self, why: str) -> None:
        say(f"pipeline {self._plan.title}: rank {self._rank} could not leave its state for a post-mortem: {why}")

    def _state(self, error: str, failure: Report | None, answers: Mapping[int, Report]) -> Report:
        plan, position, rank = self._plan, self.position, self._rank
        recent = position.recent()
        since, at = recent[-1]
        return {
            "format": "pipedsl-post-mortem",
            "version": 1,
            "run": self._run,
            "time": time.time(),
            "schedule": plan.schedule,
            "params": dict(plan.params),
            "fingerprint": plan.fingerprint,
            "rank": rank,
            "ranks": plan.ranks,
            "stages": [plan.stage_name(stage) if plan.copies else stage for stage in plan.chunks(rank)],
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "torch": torch.__version__,
            "job": {name: os.environ[name] for name in _JOB if name in os.environ},
            "step": position.steps,
            "at": {
                "call": position.text(at),
                "line": self._line(recent),
                "since": since,
                "waits_for": position.peer if position.communicating else None,
            },
            "failure": failure,
            "error": error,
            "answers": {str(other): said for other, said in sorted(answers.items()) if other != rank},
            "heard": self._heard(recent),
            "calls": [{"time": moment, "call": position.text(call)} for moment, call in recent],
        }

    def _line(self, recent: list[tuple[float, PlannedCall | str]]) -> int | None:
        """The schedule's line of where this rank stands. What a REDUCE does is in words that begin with its own."""
        call = next((each for _, each in reversed(recent) if not isinstance(each, str)), None)
        text = self.position.text
        return call.line if call is not None and text(recent[-1][1]).startswith(text(call)) else None

    def _heard(self, recent: list[tuple[float, PlannedCall | str]]) -> dict[str, Any]:
        """The last message that came of each rank, and when: a wait is over when the next call begins."""
        heard: dict[int, Any] = {}
        for (_, call), (ended, _) in itertools.pairwise(recent):
            if not isinstance(call, str) and call.receives and call.kind in ("wait", "recv"):
                heard[call.peer] = {"message": call.message, "time": ended}
        peers = {call.peer for _, call in recent if not isinstance(call, str) and call.kind not in COMPUTE_KINDS} - {-1}
        return {str(peer): heard.get(peer) for peer in sorted(peers)}
