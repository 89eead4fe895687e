"""A fault on one rank ends every rank, in time, with a message that names rank, operation and line."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipedsl.post_mortem import read_states
from pipedsl.runtime.shared_memory import can_share_memory
from tests.support import compiled
from tests.support.launch import Outcome, launch

pytestmark = pytest.mark.dist

WORKER = Path(__file__).parent / "workers" / "faults.py"
RANKS = 3
LIMIT = 400.0  # seconds; nothing here takes more than a few, but the machine may be busy


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.compile_to(tmp_path_factory.mktemp("faults") / "x.py", compiled.ONE_F_ONE_B, p=RANKS, m=4)


def run(pipeline: Path, fault: str, victim: int, *, survivors_only: bool = False) -> list[Outcome]:
    """The outcomes; without the victim's where that cannot end by itself."""

    def wait_for_survivors(processes: list, output_of: Callable[[int], str]) -> None:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline and any(
            process.poll() is None for rank, process in enumerate(processes) if rank != victim
        ):
            time.sleep(0.05)
        processes[victim].kill()

    outcomes = launch(
        WORKER,
        RANKS,
        [str(pipeline), f"{fault}:{victim}"],
        timeout=LIMIT + 10,
        meddle=wait_for_survivors if survivors_only else None,
    )
    return [outcome for rank, outcome in enumerate(outcomes) if not (survivors_only and rank == victim)]


# What every rank says. After each of these the processes live on, and go on with a new process group.
ERRORS = {
    "late:1": "leads to rank 1, which does not answer",
    "raise:1": "rank 1 failed at F of stage 1, microbatch 1 (test.sched:7): ValueError: a fault made on purpose",
    "raise:0": "rank 0 failed at F of stage 0, microbatch 1 (test.sched:6): ValueError: a fault made on purpose",
    "backward:0": "rank 0 failed at B of stage 0, microbatch 0 (test.sched:7): ZeroDivisionError",
    "shape:1": "stage 1 returned (float32 [2, 3] with gradient) for microbatch 1, but the ranks agreed on",
    "rows:2": "rank 2 failed at beginning a step: ValueError: targets has 9 rows, which m = 4 microbatches",
    "first rows:0": "rank 0 failed at beginning a step: ValueError: the batch has 9 rows, which m = 4 microbatches",
    "chunks:1": "rank 1: 2 stage modules given, but the schedule puts 1 here",
    "file:2": "another compiled file",
    "clipping:1": "rank 1 failed at clipping the gradients: TypeError",
    "interrupt:1": "rank 1 failed at F of stage 1, microbatch 1 (test.sched:7): KeyboardInterrupt",
}

HOST = "the process of global rank 0, which holds "
ENDED = "store, has ended (the connection to it is closed)"


@pytest.fixture(params=["through memory", "by the group"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How messages go between the ranks. What happens at a fault, and what is said of it, does not depend on it."""
    monkeypatch.setenv("SHARED_MEMORY", "yes" if request.param == "through memory" else "no")


@pytest.mark.usefixtures("way")
def test_an_error_reaches_every_rank(pipeline: Path) -> None:
    outcomes = launch(WORKER, RANKS, [str(pipeline), *ERRORS], timeout=LIMIT)
    for rank, outcome in enumerate(outcomes):
        assert outcome.returncode == 0, outcome.output
        _, *answers = outcome.output.split("CASE ")
        said = dict(answer.split("\n", 1) for answer in answers)
        assert said.keys() == ERRORS.keys()
        for case, expected in ERRORS.items():
            if (case, rank) == ("interrupt:1", 1):
                expected = "INTERRUPTED"  # stays what it is where it came from
            if (case, rank) == ("late:1", 1):
                expected = "nothing happened for "
            assert expected in said[case], (rank, said[case])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named(pipeline: Path, victim: int) -> None:
    """Rank 0 holds the store, so with it goes the way to ask the others."""
    outcomes = run(pipeline, "kill", victim)
    assert outcomes[victim].returncode == -9
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.returncode == 0, outcome.output
            lost = re.search(f"lost its connection to rank {victim} at (wait for|isend) ", outcome.output)
            gone = f"{HOST}the ranks' {ENDED}; rank {rank} stood at "
            assert lost or (victim == 0 and gone in outcome.output), outcome.output
            assert "(test.sched:" in outcome.output


def test_what_has_failed_where_the_store_is_held_is_known_though_it_has_gone(pipeline: Path) -> None:
    """Rank 0 ends as it cannot save; the others have gone on to the next step."""
    first, *others = run(pipeline, "saving", 0)
    assert first.returncode == 1
    assert "ValueError: this rank's stages have tensors that are none of the model's" in first.output
    for rank, outcome in enumerate(others, 1):
        assert outcome.returncode == 0, outcome.output
        said, waited = outcome.output, f"wait for F0@{rank} to arrive from rank {rank - 1} (test.sched:"
        gone = f"{HOST}the ranks' {ENDED}; rank {rank} stood at {waited}" in said
        lost = f"rank {rank} lost its connection to rank {rank - 1} at {waited}" in said
        assert gone or lost, said
        assert "\n  before that rank 0 failed at gathering the state to save: ValueError: this rank's stages" in said


@pytest.mark.usefixtures("way")
def test_a_rank_that_died_is_named_where_a_message_cannot_be_posted(pipeline: Path) -> None:
    outcomes = run(pipeline, "kill in a pause", 1)
    assert [outcome.returncode for outcome in outcomes] == [0, -9, 0]
    assert "rank 0 lost its connection to rank 1 at isend F2@1 to rank 1 (test.sched:7)" in outcomes[0].output


def test_a_rank_that_died_between_steps_is_noticed_where_gradients_are_clipped(pipeline: Path) -> None:
    outcomes = run(pipeline, "kill at clipping", 1)
    assert [outcome.returncode for outcome in outcomes] == [0, -9, 0]
    for outcome in (outcomes[0], outcomes[2]):
        lost = (
            "lost its connection to another rank at clipping the gradients: RuntimeError: .*; rank 1 does not answer\n"
        )
        assert re.search(lost, outcome.output), outcome.output
        assert "no answer from rank 1" in outcome.output


def test_a_rank_that_died_before_its_copies_gradients_were_summed_is_named(tmp_path: Path) -> None:
    """Rank 2 holds the other copies of its stages; the others may notice in the next step."""
    pipeline = compiled.compile_to(tmp_path / "x.py", compiled.CHIMERA, p=4, m=2)
    outcomes = launch(WORKER, 4, [str(pipeline), "kill in the sum:1"], timeout=LIMIT)
    assert [outcome.returncode for outcome in outcomes] == [0, -9, 0, 0]
    assert "rank 2 lost its connection to rank 1 at comparing which gradients there are of `" in outcomes[2].output
    for outcome in (outcomes[0], outcomes[2], outcomes[3]):
        assert "lost its connection to rank 1 at " in outcome.output


def test_a_rank_that_died_in_a_reduction_is_named_with_its_line(tmp_path: Path) -> None:
    """Rank 2 waits there for rank 1; the others wait for something of these two, or notice in the next step."""
    pipeline = compiled.compile_to(tmp_path / "x.py", compiled.CHIMERA_REDUCE, p=4, m=2)
    outcomes = launch(WORKER, 4, [str(pipeline), "kill in a reduction:1"], timeout=LIMIT)
    assert [outcome.returncode for outcome in outcomes] == [0, -9, 0, 0]
    *_, line = (k for k, text in enumerate(compiled.CHIMERA_REDUCE.splitlines(), 1) if text == "    REDUCE@down")
    where = f"REDUCE of stage 2/down (test.sched:{line}): comparing which gradients there are of `"
    assert f"rank 2 lost its connection to rank 1 at {where}" in outcomes[2].output
    for outcome in (outcomes[0], outcomes[2], outcomes[3]):
        assert "lost its connection to rank 1 at " in outcome.output


@pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not")
@pytest.mark.parametrize(
    ("fault", "text", "where"),
    [
        ("kill with a child", compiled.CHIMERA, "comparing which gradients there are of `"),
        ("kill at clipping with a child", compiled.ONE_F_ONE_B, "clipping the gradients: its process has ended"),
    ],
)
def test_a_rank_that_died_is_named_though_a_child_of_it_holds_its_sockets(
    fault: str, text: str, where: str, tmp_path: Path
) -> None:
    """Long before its time is up. So nothing is closed that the other one waits for."""
    pipeline = compiled.compile_to(tmp_path / "x.py", text, p=2, m=1 if text == compiled.CHIMERA else 4)
    first, second = launch(WORKER, 2, [str(pipeline), f"{fault}:1"], timeout=LIMIT)
    (child,) = re.findall(r"^CHILD (\d+)$", second.output, re.MULTILINE)
    try:
        assert Path(f"/proc/{child}").exists()
        assert second.returncode == -signal.SIGKILL
        assert f"rank 0 lost its connection to rank 1 at {where}" in first.output, first.output
        assert ": its process has ended\n" in first.output
        assert "nothing happened for" not in first.output
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(not can_share_memory(), reason="NOT TESTED: shared memory, which this system has not")
def test_a_rank_that_has_left_is_named_where_the_timeline_is_gathered(pipeline: Path) -> None:
    """It is done with its step, as the others are. Rank 0, which waits for it, does not share memory with it."""
    first, second, third = run(pipeline, "leave at the timeline", 2)
    assert third.returncode == 0, third.output
    assert "rank 1 lost its connection to rank 2 at gathering the timeline of rank 0: its process has" in second.output
    for outcome in (first, second):
        assert "rank 1 lost its connection to rank 2" in outcome.output, outcome.output
        assert (
            "rank 0, 1: gathering the timeline; rank 2: after step 1 (training), when it last said so" in outcome.output
        )


@pytest.mark.usefixtures("way")
def test_a_stopped_rank_is_named(pipeline: Path) -> None:
    for outcome in run(pipeline, "stop", 1, survivors_only=True):
        assert outcome.returncode == 0, outcome.output
        assert "nothing happened for " in outcome.output
        assert "leads to rank 1, which does not answer" in outcome.output
        assert "no answer from rank 1" in outcome.output
        assert "was at wait for" in outcome.output
        assert "(test.sched:7)" in outcome.output


def test_a_stopped_host_of_the_store_is_named(pipeline: Path) -> None:
    """The others cannot ask, and torch's client of the store would wait for ever."""
    for outcome in run(pipeline, "stop", 0, survivors_only=True):
        assert outcome.returncode == 0, outcome.output
        assert "the process of global rank 0, which holds the ranks' store, does not answer; rank " in outcome.output
        assert "stood at wait for" in outcome.output
        assert "(test.sched:" in outcome.output


def test_a_rank_stuck_in_its_module_ends_too(pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPEDSL_POST_MORTEM", str(tmp_path))
    outcomes = run(pipeline, "hang", 1)
    assert [outcome.returncode for outcome in outcomes] == [0, 1, 0]
    for outcome in outcomes:
        assert "rank 1 was at F of stage 1, microbatch 1 (test.sched:7)" in outcome.output
    runs, problems = read_states(str(tmp_path))
    (states,) = runs.values()
    assert (len(states), problems) == (RANKS, [])
    assert states[1].call == "F of stage 1, microbatch 1 (test.sched:7)"
    assert [state.waits_for for state in states[1:]] == [None, 1]


def test_a_wrong_number_of_processes_is_refused_everywhere(tmp_path: Path) -> None:
    path = compiled.compile_to(tmp_path / "x.py", compiled.ONE_F_ONE_B, p=4, m=4)
    for outcome in launch(WORKER, 2, [str(path), "none:0"], timeout=LIMIT):
        assert outcome.returncode == 0, outcome.output
        assert "compiled for p = 4 ranks, but the process group has 2" in outcome.output
