"""State files: what keeps them from being written changes nothing else, and what is no state file is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from pipedsl.cli.main import cli
from pipedsl.post_mortem import ends_of_waiting
from pipedsl.runtime.files import write_whole
from pipedsl.runtime.post_mortem import PostMortem, post_mortem_folder
from tests.support import compiled
from tests.support.launch import ROOT
from tests.support.nccl_like import Fabric, run_ranks
from tests.support.on_threads import refused
from tests.support.worker import load, mlp

RANKS, M = 2, 2


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    return load(compiled.compile_to(tmp_path / "x.py", compiled.SPLIT, p=RANKS, m=M))


def failures(pipeline: Any, **options: Any) -> list[str]:
    """What every rank says of a step in which rank 0 raises."""
    stages = mlp(RANKS)

    def body(wire: Any) -> None:
        pipe = pipeline.Pipeline(stages[wire.rank], functional.cross_entropy, process_group=wire, timeout=30, **options)
        if wire.rank == 0:
            stages[0].register_forward_hook(lambda *_: 1 // 0)
        pipe.step(torch.randint(11, (2 * M,)), torch.randint(5, (2 * M,)))

    ranks = run_ranks(Fabric(RANKS), body)
    assert all(isinstance(rank.error, pipeline.PipelineError) for rank in ranks), ranks
    for rank in ranks:
        assert "rank 0 failed at F of stage 0, microbatch 0 (test.sched:4): ZeroDivisionError" in str(rank.error)
    return [str(rank.error) for rank in ranks]


def told(folder: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["post-mortem", str(folder)])
    return result.exit_code, result.stdout, result.stderr


def test_the_files_of_all_ranks(pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder that is given; that of the environment counts where none is."""
    monkeypatch.setenv("PIPEDSL_POST_MORTEM", str(tmp_path / "other"))
    said = failures(pipeline, post_mortem=tmp_path / "here")
    assert not (tmp_path / "other").exists()
    left = [json.loads(path.read_text()) for path in sorted((tmp_path / "here").iterdir())]
    assert [(each["rank"], each["error"]) for each in left] == list(enumerate(said))
    assert left[0]["run"] == left[1]["run"]
    assert left[0]["calls"][-1]["call"] == left[0]["at"]["call"] == "F of stage 0, microbatch 0 (test.sched:4)"
    assert left[0]["at"]["line"] == 4
    assert [list(each["answers"]) for each in left] == [["1"], ["0"]]
    assert left[0]["calls"][-2]["call"].startswith("opening the channel ")
    failures(pipeline, post_mortem="")
    assert not (tmp_path / "other").exists()
    failures(pipeline)
    failures(pipeline)
    assert len(list((tmp_path / "other").iterdir())) == 2 * RANKS, "nothing is overwritten"


def test_where_state_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nowhere, unless something is named; where that was when the pipeline was made, though the job goes elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIPEDSL_POST_MORTEM", raising=False)
    assert post_mortem_folder(None) == ""
    monkeypatch.setenv("PIPEDSL_POST_MORTEM", "there")
    assert post_mortem_folder("") == ""
    ways: tuple[Any, ...] = (None, "there", b"there", Path("there"))
    for each in ways:
        assert post_mortem_folder(each) == str(tmp_path / "there")
    wrong: Any = 5
    with pytest.raises(TypeError, match="post_mortem must be a folder's path, not a int"):
        post_mortem_folder(wrong)


def test_runs_of_one_second_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the first rank that comes is all ranks'."""
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2001, 2, 3, 4, 5, 6, 5, 34, 0)))
    plan: Any = SimpleNamespace(source="", title="the test")
    names = []
    for _ in range(2):
        store = dist.HashStore()
        first, second = (PostMortem(str(tmp_path), plan, rank, store)._run for rank in (0, 1))
        assert first == second
        assert first.startswith("20010203T040506Z-")
        names.append(first)
    assert names[0] != names[1]


def test_stages_of_copies_are_called_by_their_names(tmp_path: Path) -> None:
    def spoil(held: Any) -> None:
        torch.nn.init.ones_(next(held[0][0].parameters()))

    refused(tmp_path, spoil, post_mortem=tmp_path / "states")
    left = [json.loads(path.read_text()) for path in sorted((tmp_path / "states").iterdir())]
    assert [each["stages"] for each in left] == [["0/down", "1/up"], ["1/down", "0/up"]]


def test_a_folder_that_cannot_be_made_is_one_line(
    pipeline: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    failures(pipeline, post_mortem=tmp_path / "file" / "folder")
    complaints = [line for line in capsys.readouterr().err.splitlines() if "could not leave its state" in line]
    assert sorted(line.split("could")[0] for line in complaints) == [
        f"pipeline split(p=2, m=2): rank {rank} " for rank in range(RANKS)
    ]


def test_a_folder_that_never_answers_does_not_keep_the_ranks(
    pipeline: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(pipeline, "_MOST_TO_WRITE", 0.1)
    monkeypatch.setattr(pipeline, "write_whole", lambda *_: answer.wait())
    failures(pipeline, post_mortem=tmp_path / "silent")
    answer.set()
    assert capsys.readouterr().err.count("for a post-mortem: it takes more than 0.1 s") == RANKS


def test_what_fails_outside_of_a_step_leaves_a_file_too(pipeline: Any, tmp_path: Path) -> None:
    """At the start on every rank; later where it happens, and the pipeline goes on."""

    def make(wire: Any, folder: str) -> Any:
        stage = mlp(RANKS)[wire.rank]
        stages = [stage] if folder else [stage, stage][: 2 - wire.rank]
        return pipeline.Pipeline(
            stages, functional.cross_entropy, process_group=wire, timeout=30, post_mortem=tmp_path / (folder or "start")
        )

    start = run_ranks(Fabric(RANKS), lambda wire: make(wire, ""))
    left = [json.loads(path.read_text()) for path in sorted((tmp_path / "start").iterdir())]
    assert [each["error"] for each in left] == [str(rank.error) for rank in start]
    for state in left:
        assert "cannot start: rank 0: 2 stage modules given" in state["error"]
        assert (state["at"]["call"], state["failure"], state["step"]) == ("making the pipeline", None, 0)
    assert "cannot start: rank 0: 2 stage modules given" in told(tmp_path / "start")[1]

    def body(wire: Any) -> Any:
        pipe = make(wire, "later")
        pipe.step(torch.randint(11, (2 * M,)), torch.randint(5, (2 * M,)))
        if wire.rank == 1:
            with pytest.raises(ValueError, match="none of the model's"):
                pipe.state_dict(mlp(1)[0])
            whole = pipe._modules[0]
            with pytest.raises(ValueError, match="the state has no 'model'"):
                pipe.load_state_dict(whole, {})
        return pipe.step(torch.randint(11, (2 * M,)), torch.randint(5, (2 * M,)))

    ranks = run_ranks(Fabric(RANKS), body)
    assert [rank.error for rank in ranks] == [None, None]
    (state,) = [json.loads(path.read_text()) for path in (tmp_path / "later").iterdir()]
    assert (state["rank"], state["step"], state["at"]["call"]) == (1, 1, "taking over a saved state")
    assert state["at"]["line"] is None, "it is none of the schedule's calls"
    assert state["error"].startswith(
        "pipeline split(p=2, m=2): rank 1 failed at taking over a saved state: ValueError: the state has"
    )
    assert state["failure"]["rank"] == 1
    assert "rank 0: left no file" in told(tmp_path / "later")[1]


ALONE = """
import sys
from torch import nn
from tests.support.nccl_like import Fabric
from tests.support.worker import load

class Noting:
    def __init__(self, store):
        self.store = store
    def __getattr__(self, name):
        return getattr(self.store, name)
    def check(self, keys):
        if keys == ["ready/1"]:
            print("waiting", flush=True)
        return self.store.check(keys)

wire = Fabric(2).wire(0)
store = wire.store
wire.store = lambda *args, **options: Noting(store(*args, **options))
load(sys.argv[1]).Pipeline(nn.Identity(), process_group=wire, timeout=90, post_mortem=sys.argv[2])
"""


def test_a_rank_that_is_told_to_end_while_it_waits_for_the_others_to_start(tmp_path: Path) -> None:
    path = compiled.compile_to(tmp_path / "x.py", compiled.SPLIT, p=RANKS, m=M)
    command = [sys.executable, "-c", ALONE, str(path), str(tmp_path / "left")]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.terminate()
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGTERM
    assert "split(p=2, m=2): rank 0 was told to end (SIGTERM) at making the pipeline" in said
    (state,) = [json.loads(each.read_text()) for each in (tmp_path / "left").iterdir()]
    assert f"{state['error']}\n" in said
    assert state["error"].endswith("at making the pipeline")


TRACE = """
import resource, sys
from pipedsl.runtime.clock import Event
from pipedsl.runtime.timeline import Timeline
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
Timeline((tuple(Event(f"F s0 mb{i}", "F", 0, i, 0.0, 1.0) for i in range(100)),), (0.0,)).save_trace(sys.argv[1])
"""


def test_a_trace_on_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    path.write_text("of before")
    ended = subprocess.run(
        [sys.executable, "-c", TRACE, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stderr.splitlines()[-1] == f"OSError: [Errno 27] {os.strerror(27)}: '{path}'"
    assert path.read_text() == "of before"
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_replaced_through_links_and_devices_stay(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    for text in ("one", "two"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "target").read_text() == text
    assert (tmp_path / "link").is_symlink()
    write_whole(os.devnull, "gone")
    assert not Path(os.devnull).is_file()
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "none" / "x", "")
    assert caught.value.filename == str(tmp_path / "none" / "x")


AT = {"call": "wait for F0@0", "since": 1e9 - 5, "waits_for": 1}
GOOD = {
    "format": "pipedsl-post-mortem",
    "version": 1,
    "run": "a",
    "time": 1e9,
    "schedule": "x",
    "params": {"p": 3},
    "rank": 0,
    "ranks": 3,
    "host": "h",
    "pid": 7,
    "step": 2,
    "at": AT,
    "failure": {"rank": 0},
    "error": "first line\nsecond line",
}


def write(folder: Path, rank: int, waits_for: int | None, **other: Any) -> None:
    at = {**AT, "call": f"call {rank}", "waits_for": waits_for}
    (folder / f"a.rank{rank}.json").write_text(json.dumps({**GOOD, "rank": rank, "at": at, **other}))


def test_ranks_that_wait_for_one_another(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    write(tmp_path, 1, 0)
    write(tmp_path, 2, 1)
    assert told(tmp_path) == (
        0,
        "x(p=3), step 2, 2001-09-09 01:46:40 UTC\n"
        "  rank 0 (h, pid 7): at call 0, waiting for rank 1, for 5.0 s\n"
        "  rank 1 (h, pid 7): at call 1, waiting for rank 0, for 5.0 s\n"
        "  rank 2 (h, pid 7): at call 2, waiting for rank 1, for 5.0 s\n"
        "  ranks 0, 1 wait for one another\n"
        "rank 0 said:\n"
        "  first line\n"
        "  second line\n",
        "",
    )


def test_a_rank_that_all_wait_for(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, failure={"rank": 1})
    write(tmp_path, 1, None, error="\x1b[31m of rank 1", failure={"rank": 1})
    code, out, _ = told(tmp_path)
    assert code == 0
    assert "  rank 2: left no file (killed, stopped, or not in step())\n" in out
    assert "  the waiting leads to rank 1, at call 1\n" in out
    assert "rank 1 said:\n" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff",
        "[" * 100_000,
        "9" * 5000,
        *(json.dumps({**GOOD, key: None}) for key in GOOD if key != "failure"),
        *(json.dumps({**GOOD, key: value}) for key in ("run", "schedule", "error", "host") for value in (3, [])),
        *(
            json.dumps({**GOOD, key: value})
            for key in ("rank", "ranks", "pid", "step")
            for value in (-1, 0.5, True, "")
        ),
        *(json.dumps({**GOOD, "time": value}) for value in (-1, 1e300, float("nan"), True, "")),
        json.dumps({**GOOD, "at": {**AT, "since": "x"}}),
        json.dumps({**GOOD, "at": {**AT, "waits_for": 3}}),
        json.dumps({**GOOD, "failure": {"rank": 3}}),
        json.dumps({**GOOD, "failure": {}}),
        json.dumps({**GOOD, "params": []}),
        json.dumps({**GOOD, "ranks": 1 << 40}),
    ],
)
def test_what_is_no_state_file_is_said(text: str, tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    (tmp_path / "b.rank1.json").write_bytes(text.encode("latin-1"))
    code, out, err = told(tmp_path)
    assert code == 0
    assert "call 0" in out
    assert err.startswith("b.rank1.json: ")
    assert err.count("\n") == 1


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    os.mkfifo(tmp_path / "b.rank1.json")
    (tmp_path / "b.rank2.json").symlink_to("/dev/zero")
    (tmp_path / "b.rank3.json").symlink_to("nowhere")
    command = [sys.executable, "-m", "pipedsl", "post-mortem", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "call 0" in result.stdout
    assert result.stderr.splitlines() == [
        "b.rank1.json: not a state file: a pipe or a device",
        "b.rank2.json: not a state file: a pipe or a device",
        f"b.rank3.json: not a state file: {os.strerror(2)}",
    ]


def test_a_forged_file_is_told_in_a_few_lines(tmp_path: Path) -> None:
    many = "x" * 100_000
    write(tmp_path, 5, None, ranks=1 << 20, schedule=many, host=many, params={many: many}, error=f"{many}\n" * 30)
    write(tmp_path, 7, 5, ranks=1 << 20, schedule=many, params={many: many}, error="\n" * 1_000_000)
    (tmp_path / "b.rank1.json").write_text(json.dumps({**GOOD, "pid": 10**4000}))
    code, out, err = told(tmp_path)
    assert code == 0
    assert "  ranks 0 to 4: left no file (killed, stopped, or not in step())\n  rank 5 (" in out
    assert "  rank 6: left no file (killed, stopped, or not in step())\n  rank 7 (" in out
    assert "\n  ranks 8 to 1048575: left no file" in out
    assert len(out) < 30_000
    assert err == "b.rank1.json: not a state file: pid must be a whole number\n"


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    (tmp_path / "b.rank0.json").write_text(json.dumps(GOOD))
    (tmp_path / "b.rank2.json").mkdir()
    _, out, err = told(tmp_path)
    assert out.count("step 2") == 1
    assert err.splitlines() == [
        "b.rank0.json: rank 0 of this run has another file",
        f"b.rank2.json: not a state file: {os.strerror(21)}",
    ]


def test_ranks_that_run_other_files_than_the_first(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    write(tmp_path, 1, None, schedule="y")
    write(tmp_path, 3, None, params={"p": 4}, ranks=4)
    _, out, err = told(tmp_path)
    assert "  rank 1 (h, pid 7): with another file, y(p=3), at call 1, for 5.0 s\n" in out
    assert "  rank 2: left no file" in out
    assert "  rank 3 (h, pid 7): with another file, x(p=4), at call 3, for 5.0 s\n" in out
    assert "  the waiting leads to rank 1, at call 1\n" in out
    assert err == ""


def test_a_rank_with_another_compiled_file(pipeline: Any, tmp_path: Path) -> None:
    other = load(compiled.compile_to(tmp_path / "y.py", compiled.ONE_F_ONE_B, p=RANKS, m=M))

    def body(wire: Any) -> None:
        module = (pipeline, other)[wire.rank]
        module.Pipeline(mlp(RANKS)[wire.rank], process_group=wire, timeout=30, post_mortem=tmp_path / "left")

    assert all("runs another compiled file" in str(rank.error) for rank in run_ranks(Fabric(RANKS), body))
    _, out, _ = told(tmp_path / "left")
    assert "with another file, one_f_one_b(p=2, m=2), at making the pipeline" in out
    assert "left no file" not in out


def test_copies_that_begin_unequal_wait_for_nobody(pipeline: Any, tmp_path: Path) -> None:
    """Tied ones, and those of a schedule that has copies."""
    two_ways = load(compiled.compile_to(tmp_path / "y.py", compiled.TWO_WAYS, p=RANKS, m=1))

    def body(wire: Any, module: Any, folder: str) -> None:
        torch.manual_seed(wire.rank)
        stages = [mlp(RANKS)[s] for s in module.stages_of(wire.rank)]
        tied = {"x": stages[0][1 - wire.rank].weight} if module is pipeline else None
        pipe = module.Pipeline(
            stages,
            functional.cross_entropy,
            process_group=wire,
            timeout=30,
            tied=tied,
            post_mortem=tmp_path / folder,
        )
        pipe.step(torch.randint(11, (2 * M,)), torch.randint(5, (2 * M,)))

    for module, folder, says in (
        (pipeline, "tied", "tied parameter 'x' has other values"),
        (two_ways, "copies", "did not begin equal"),
    ):
        ranks = run_ranks(Fabric(RANKS), partial(body, module=module, folder=folder))
        assert all(says in str(rank.error) for rank in ranks)
        _, out, _ = told(tmp_path / folder)
        assert says in out
        assert "wait for one another" not in out


def test_nothing_to_read(tmp_path: Path) -> None:
    assert told(tmp_path / "none") == (2, "", f"error: {tmp_path / 'none'}: {os.strerror(2)}\n")
    assert told(tmp_path) == (2, "", f"error: {tmp_path}: no state files (NAME.rankN.json) in this folder\n")


@given(st.dictionaries(st.integers(0, 7), st.none() | st.integers(0, 7), max_size=8))
def test_where_waiting_leads_against_walking_far_enough(waits: dict[int, int | None]) -> None:
    def walk(rank: int, steps: int) -> int:
        for _ in range(steps):
            following = waits.get(rank)
            rank = rank if following is None else following
        return rank

    expected = {frozenset(walk(rank, steps) for steps in range(8, 17)) for rank in waits}
    assert {frozenset(each) for each in ends_of_waiting(waits)} == expected
