"""What PyTorch itself says of a pipelining CSV: its reader, `_validate_schedule`, its lowering and its simulation.

PyTorch is asked in a process of its own, with a time limit for each question, so that whatever a broken schedule makes
it do stays there. `opinions` asks many questions at once, as starting PyTorch takes seconds.

    accept   it found nothing wrong
    reject   it said that the schedule is wrong
    hang     it said that the schedule cannot progress
    error    it failed in some other way (KeyError, a type it does not support)
    time     it did not answer in time
    skipped  an earlier question was not answered with `accept`
"""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Question:
    """A CSV and what its user would tell PyTorch of it."""

    text: str
    ranks: int
    stages: int
    microbatches: int


@dataclass(frozen=True)
class Opinion:
    """Answers, and the first words of what PyTorch said where one is not `accept`.

    `lower` is `_add_send_recv`, asked of compute-only files. `simulate` is asked of what lowering made, or of the file
    itself where it has communication.
    """

    read: str
    validate: str
    lower: str
    simulate: str
    said: str = ""

    @property
    def verdict(self) -> str:
        """The first answer that is not `accept`."""
        answers = (self.read, self.validate, self.lower, self.simulate)
        return next((answer for answer in answers if answer not in ("accept", "skipped")), "accept")


def opinion(question: Question, seconds: float = 10.0) -> Opinion:
    return opinions([question], seconds)[0]


def opinions(questions: Sequence[Question], seconds: float = 10.0, total: float = 600.0) -> list[Opinion]:
    """PyTorch's opinion of each, `seconds` at most for each. Raises TimeoutExpired after `total` seconds."""
    asked = json.dumps({"seconds": seconds, "questions": [asdict(question) for question in questions]})
    script = str(Path(__file__).resolve())
    done = subprocess.run([sys.executable, script], input=asked, capture_output=True, text=True, timeout=total)
    if done.returncode != 0:
        raise RuntimeError(f"PyTorch's process ended with {done.returncode}: {done.stderr[-2000:]}")
    return [Opinion(**answer) for answer in json.loads(done.stdout)]


# ------------------------------------------------------------------ in the other process


class _Late(BaseException):
    """Not an Exception, so that nothing in PyTorch catches it."""


def _ask(question: Question, seconds: float) -> Opinion:
    from torch.distributed.pipelining import schedules

    answers = {"read": "skipped", "validate": "skipped", "lower": "skipped", "simulate": "skipped"}
    said = ""

    def step(name: str, work: Callable[[], Any]) -> Any:
        nonlocal said
        if said:
            return None
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            result = work()
            answers[name] = "accept"
            return result
        except _Late:
            answers[name], said = "time", f"no answer in {seconds} s"
        except Exception as error:  # whatever it is, it is the answer
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
            answers[name] = _kind_of(name, error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return None

    def read() -> dict[int, list[Any]]:
        rows = csv.reader(io.StringIO(question.text, newline=""))
        return {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}

    actions = step("read", read)
    mapping = step(
        "validate",
        lambda: schedules._validate_schedule(actions, question.ranks, question.stages, question.microbatches),
    )
    if said:
        return Opinion(**answers, said=said)
    compute_only = all(each is None or each.is_compute_op for row in actions.values() for each in row)
    # `_PipelineScheduleRuntime` drops idle steps before it lowers.
    lowered = {rank: [each for each in row if each is not None] for rank, row in actions.items()}
    if compute_only:
        lowered = step("lower", lambda: schedules._add_send_recv(lowered, mapping.__getitem__, question.stages))
    else:
        # The simulation knows no sharding.
        sharding = (schedules.UNSHARD, schedules.RESHARD, schedules.REDUCE_GRAD)
        lowered = {
            rank: [each for each in row if each.computation_type not in sharding] for rank, row in lowered.items()
        }
    step("simulate", lambda: schedules._simulate_comms_compute(lowered, mapping.__getitem__, question.stages))
    return Opinion(**answers, said=said)


def _kind_of(name: str, error: Exception) -> str:
    if "not progressing" in str(error) or "can't schedule sends/recvs" in str(error):
        return "hang"
    if name == "read" and isinstance(error, RuntimeError):
        return "reject"
    return "reject" if isinstance(error, AssertionError) else "error"


def _main() -> None:
    def late(*_: object) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, late)
    asked = json.load(sys.stdin)
    answer_to, sys.stdout = sys.stdout, sys.stderr  # PyTorch prints what does not progress
    answers = [asdict(_ask(Question(**question), asked["seconds"])) for question in asked["questions"]]
    json.dump(answers, answer_to)


if __name__ == "__main__":
    _main()
