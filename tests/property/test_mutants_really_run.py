"""Slips of the pen in the shipped schedules, really run: no bad one passes, and every rejection is a true one.

`benchmarks/mutants.py` does the same for every mutant up to four ranks and eight microbatches.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from closed import closed
from compiled import admitted, compile_to
from explore import run as explore
from judge import WASTEFUL, Judged, forms, judge
from mutants import EDITS, Mutant, edited, mutants
from nccl_like import EAGER, LAZY, Fabric, run_ranks
from rehearse import EQUAL, ERROR, HANGS, TRANSPORTS, WRONG, as_written, from_calls, run
from tiny import Model
from torch import nn
from words import word_program
from worker import alone, difference, gradients, load, mlp

from pipedsl.calls_json import write_calls
from pipedsl.program import Program
from pipedsl.sched_text import program_text
from verify import verify

SIZES = ((1, 2), (2, 3), (2, 4), (3, 3))
LARGEST = (4, 8)
EVERY = 47  # of the largest


@cache
def judged() -> tuple[tuple[str, Judged], ...]:
    found = []
    for name in closed():
        for p, m in (*SIZES, LARGEST):
            if not admitted(name, p=p, m=m):
                continue
            for form, program in forms(name, p, m):
                model = Model(program.stages, m)
                some = list(mutants(program))[:: EVERY if (p, m) == LARGEST else 7]
                found += [(form, judge(mutant, model)) for mutant in some]
    return tuple(found)


def test_no_verdict_is_wrong() -> None:
    assert [f"{form}: {each.name}: {each.wrong}" for form, each in judged() if each.wrong] == []


def test_all_kinds_of_mutants_and_of_ends_are_there() -> None:
    """So that the test above says something."""
    edits = Counter((form, each.edit) for form, each in judged())
    assert set(edits) == {(form, edit) for form in ("computations", "communication") for edit in EDITS} - {
        ("computations", "flip")
    }
    assert min(edits.values()) > 30
    ends = Counter((each.accepted, each.happens) for _, each in judged())
    assert set(ends) == {(True, EQUAL), (False, ERROR), (False, HANGS), (False, WRONG), (False, WASTEFUL)}
    assert min(ends.values()) > 20


def test_what_is_wasteful() -> None:
    """Rejected though the gradients can come out equal: an operation that runs twice, and nothing else."""
    for _, each in judged():
        if each.happens == WASTEFUL:
            assert each.edit == "duplicate"
            assert set(each.codes) == {"PD207"}
            assert each.name.split(": ")[1].split()[0] in ("F", "SEND_F", "SEND_B")


# ------------------------------------------------------------------ is what happens there what happens?


def outcomes(words: list[list[str]], placement: list[int] | None = None, *, once: bool = False) -> dict[str, str]:
    program = word_program(words, placement=placement)
    model = Model(program.stages, program.microbatches)
    actions = as_written(program, once=once)
    return {name: run(model, program.placement[0].tolist(), actions, name).kind for name in TRANSPORTS}


def on_all(kind: str) -> dict[str, str]:
    return dict.fromkeys(TRANSPORTS, kind)


FIRST = ["F0", "F1", "B0", "B1"]


def test_right_programs_are_equal() -> None:
    assert outcomes([["F0", "B0"], ["F0", "B0"]]) == on_all(EQUAL)
    assert outcomes([["F0", "I0", "W0"], ["F0", "I0", "W0"]]) == on_all(EQUAL)
    assert outcomes([["F0@0", "F0@1", "B0@1", "B0@0"]], placement=[0, 0]) == on_all(EQUAL)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([["F0", "F1", "B1"], ["F0", "B0", "F1", "B1"]], WRONG),  # a B is missing at the end of the line
        ([["F0", "I0"], ["F0", "I0", "W0"]], WRONG),  # a W
        ([["F0", "I0", "W0"], ["F0", "I0"]], WRONG),
        ([FIRST, ["F0", "B0", "F1"]], HANGS),  # rank 0 waits for a gradient
        ([["F0", "B0", "B1"], ["F0", "B0", "F1", "B1"]], HANGS),  # a gradient for a forward that is missing
        ([FIRST, ["F0", "B0", "B1"]], ERROR),  # B without its F
        ([["F0", "F1", "B0", "B1", "B1"], ["F0", "B0", "F1", "B1"]], ERROR),
        ([["F0", "W0", "I0"], ["F0", "I0", "W0"]], ERROR),
        ([["F0", "B0"], ["B0", "F0"]], ERROR),
        ([["F0@0", "B0@0"], ["F0@1", "B0@1", "F0@0"]], ERROR),  # not the rank of the stage
    ],
)
def test_broken_structures_fail(words: list[list[str]], kind: str) -> None:
    placement = [0, 1]
    found = outcomes(words, placement, once=True)
    assert found["buffered"] == kind
    assert EQUAL not in found.values()


def test_order_alone_mixes_up_what_tags_tell_apart() -> None:
    """Rank 1 receives microbatch 1 first: on NCCL it has microbatch 0 under that name, and compares with its target."""
    first = ["F0", "SEND_F0", "F1", "SEND_F1", "RECV_B1", "B1", "RECV_B0", "B0"]
    second = ["RECV_F1", "F1", "RECV_F0", "F0", "B1", "SEND_B1", "B0", "SEND_B0"]
    found = outcomes([first, second])
    assert {found[name] for name in ("buffered", "gloo")} == {EQUAL}
    assert {found[name] for name in TRANSPORTS if name.startswith("nccl")} == {WRONG}


def test_a_receive_that_is_posted_holds_later_sends_of_its_stream() -> None:
    first = ["F0@0", "SEND_F0@0", "RECV_F0@2", "F0@2", "B0@2", "SEND_B0@2", "RECV_B0@0", "B0@0"]
    second = ["RECV_F0@1", "F0@1", "SEND_F0@1", "RECV_B0@1", "B0@1", "SEND_B0@1"]
    assert outcomes([first, second], placement=[0, 1, 0]) == on_all(EQUAL)
    second[2:4] = reversed(second[2:4])
    found = outcomes([first, second], placement=[0, 1, 0])
    assert {found[name] for name in ("buffered", "gloo")} == {EQUAL}
    assert {found[name] for name in TRANSPORTS if name.startswith("nccl")} == {HANGS}


def test_a_send_that_nobody_receives_ends_only_with_buffers() -> None:
    found = outcomes([["F0", "SEND_F0", "SEND_F0", "RECV_B0", "B0"], ["RECV_F0", "F0", "B0", "SEND_B0"]])
    assert found == {**on_all(HANGS), "buffered": EQUAL}


def test_the_first_use_of_a_pair_holds_the_host() -> None:
    """Three ranks in a ring. Rank 0 posts the receive of its second chunk first: cold, it never comes to its send."""
    words = (
        "RECV_F0@3 F0@0 SEND_F0@0 F0@3 SEND_F0@3 RECV_B0@3 B0@3 SEND_B0@3 RECV_B0@0 B0@0",
        "RECV_F0@1 F0@1 SEND_F0@1 RECV_F0@4 F0@4 SEND_F0@4 RECV_B0@4 B0@4 SEND_B0@4 RECV_B0@1 B0@1 SEND_B0@1",
        "RECV_F0@2 F0@2 SEND_F0@2 RECV_F0@5 F0@5 B0@5 SEND_B0@5 RECV_B0@2 B0@2 SEND_B0@2",
    )
    found = outcomes([word.split() for word in words], placement=[0, 1, 2, 0, 1, 2])
    hanging = {"nccl-lazy", "nccl-eager", "nccl-eager-warm"}
    assert found == {**on_all(EQUAL), **dict.fromkeys(hanging, HANGS)}


def test_the_explorer_agrees() -> None:
    """The hangs of these models of the transports are those of another, that moves step by step; both written apart."""
    compared, choose = Counter[str](), random.Random(3)
    for schedule, p, m in (("1f1b", 2, 4), ("zb_h1", 3, 3), ("interleaved_1f1b", 3, 3)):
        program = dict(forms(schedule, p, m))["communication"]
        model, home = Model(program.stages, m), program.placement[0].tolist()
        for _ in range(40):
            mutated = program
            for _ in range(choose.randint(1, 20)):
                rank = choose.randrange(p)
                swapped = edited(mutated, "swap", rank, choose.choice(mutated.rows(rank)))
                if swapped is not None and verify(swapped, remedies=0).calls is not None:
                    mutated = swapped
            calls = verify(mutated, remedies=0).calls
            assert calls is not None
            document, actions = write_calls(calls), from_calls(mutated, calls)
            hangs = {name: run(model, home, actions, name).kind == HANGS for name in TRANSPORTS}
            assert hangs == {name: explore(document, name, seed=1) for name in TRANSPORTS}, document
            compared["hangs somewhere" if any(hangs.values()) else "ends"] += 1
            compared["hangs eager only"] += hangs["nccl-eager-warm"] and not hangs["nccl-lazy-warm"]
    assert min(compared[what] for what in ("hangs somewhere", "hangs eager only", "ends")) > 0, compared


def test_compiled_mutants_agree(tmp_path: Path) -> None:
    """Some of those that pass, run by the executor that `compile` writes, on threads over NCCL-like streams."""
    choose = random.Random(5)
    for number, name in enumerate(closed()):
        form, mode = ("computations", LAZY) if number % 2 else ("communication", EAGER)
        p, m = (3, 6) if admitted(name, p=3, m=6) else (2, 4)
        program = dict(forms(name, p, m))[form]
        passing = [each for each in mutants(program) if each.edit == "swap" and _passes(each)]
        _train(choose.choice(passing).program, mode, tmp_path)


def _passes(mutant: Mutant) -> bool:
    return not verify(mutant.program, remedies=0).diagnostics


def _train(program: Program, mode: str, folder: Path) -> None:
    torch.manual_seed(3)
    stages = mlp(program.stages)
    reference = copy.deepcopy(stages)
    m = program.microbatches
    path = compile_to(folder / "pipeline.py", program_text(program), p=program.ranks, m=m)
    module = load(path)
    batch, targets = torch.randint(0, 11, (2 * m,)), torch.randint(0, 5, (2 * m,))
    loss_fn = nn.functional.cross_entropy

    def work(wire: Any) -> None:
        mine = [stages[s] for s, owner in enumerate(module.PLACEMENT) if owner == wire.rank]
        module.Pipeline(mine, loss_fn, process_group=wire, timeout=20).step(batch, targets)

    for rank in run_ranks(Fabric(program.ranks, mode), work):
        assert rank.error is None
        assert not rank.hung
    alone(reference, loss_fn, list(batch.chunk(m)), list(targets.chunk(m)))
    for ours, theirs in zip(stages, reference, strict=True):
        expected = gradients(theirs)
        for name, gradient in gradients(ours).items():
            assert difference(gradient, expected[name]) < 1e-5, name
