"""Certificates of true programs are accepted, forged ones are refused."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import accepted, at, certified, changed, paths, signed
from words import gpipe, interleaved, memory, one_f_one_b, word_program, zb_h1, zb_h2

from pipedsl.calls_json import read_calls, write_calls
from pipedsl.program import Program
from verify import check_calls, verify
from verify import checker as checker_module
from verify.certificate import certificate
from verify.checker import STREAMS, Refused, check, main

CHECKER = Path(checker_module.__file__)


def chimera() -> Program:
    words = [["F0@0/0", "F0@1/1", "B0@1/1", "B0@0/0"], ["F0@0/1", "F0@1/0", "B0@1/0", "B0@0/1"]]
    return replace(word_program(words), placement=np.array([[0, 1], [1, 0]], np.int32))


def summed() -> Program:
    """The sums over the two copies of each stage placed: of stage 1 first."""
    words = [
        ["F0@0/0", "F0@1/1", "B0@1/1", "REDUCE@1/1", "B0@0/0", "REDUCE@0/0"],
        ["F0@0/1", "F0@1/0", "B0@1/0", "REDUCE@1/0", "B0@0/1", "REDUCE@0/1"],
    ]
    return replace(word_program(words, microbatches=1), placement=np.array([[0, 1], [1, 0]], np.int32))


def summed_alone() -> Program:
    words = [[*word, "REDUCE"] for word in zb_h1(2, 3)]
    return word_program(words)


def by_hand() -> Program:
    """Communication in the text."""
    words = [
        ["F0@0", "SEND_F0@0", "F1@0", "SEND_F1@0", "RECV_B0@0", "B0@0", "RECV_B1@0", "B1@0"],
        ["RECV_F0@1", "F0@1", "RECV_F1@1", "B0@1", "SEND_B0@1", "F1@1", "B1@1", "SEND_B1@1"],
    ]
    return word_program(words)


def sized() -> Program:
    """Fractions, parts held by W, weights, messages with a size, and caps that are just met."""
    sizes = memory(3, 3, activation="3/2", held="1/2", weights="1/7", output="1/3", cap=9)
    return word_program(zb_h1(3, 4), sizes=sizes)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "one rank": lambda: word_program([["F0", "B0"]]),
    "1f1b": lambda: word_program(one_f_one_b(4, 6)),
    "gpipe": lambda: word_program(gpipe(3, 4)),
    "zb_h1": lambda: word_program(zb_h1(3, 5)),
    "zb_h2": lambda: word_program(zb_h2(3, 6)),
    "interleaved": lambda: word_program(interleaved(2, 4, 2), placement=[0, 1, 0, 1]),
    "the V": lambda: word_program(
        [["F0@0", "F0@3", "B0@3", "B0@0"], ["F0@1", "F0@2", "B0@2", "B0@1"]], placement=[0, 1, 1, 0]
    ),
    "chimera": chimera,
    "sums": summed,
    "sums of one copy": summed_alone,
    "by hand": by_hand,
    "sizes": sized,
}
SMALL = ("one rank", "the V", "chimera", "by hand")


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_verified_is_accepted(name: str) -> None:
    program = PROGRAMS[name]()
    document, subject = certified(program)
    everywhere = check(document, subject)
    assert everywhere.startswith("safe on buffered, gloo, ")
    calls = verify(program).calls
    assert calls is not None
    assert check(document, json.loads(json.dumps(write_calls(calls)))) == everywhere
    del subject["memory"]
    assert check(document, subject) == everywhere


BATCH = {"ranks": [[["batch", [["isend", 1, 0], ["irecv", 1, 1]]], ["wait", 0]],
                   [["batch", [["irecv", 0, 0], ["isend", 0, 1]]], ["wait", 0]]]}  # fmt: skip


def test_calls_alone() -> None:
    blocking = {"ranks": [[["send", 1, "a"], ["recv", 1, "b"]], [["recv", 0, "a"], ["send", 0, "b"]]]}
    for subject in (BATCH, blocking, {"ranks": [[], []]}):
        report = check_calls(read_calls(subject), list(STREAMS))
        document = certificate(None, read_calls(subject), report)
        assert check(document, subject) == f"safe on {', '.join(STREAMS)}"
        other = copy.deepcopy(subject)
        other["ranks"].append([])
        assert not accepted(document, other)


def test_one_order_of_messages_is_enough_for_mirrored_calls() -> None:
    document, _ = certified(word_program(one_f_one_b(4, 6)))
    assert len(document["orders"]) == 1
    assert set(document["orders"][0]) == {"transports", "messages"}


def test_only_what_is_verified_gets_one() -> None:
    crossing = {"ranks": [[["send", 1, "a"], ["recv", 1, "b"]], [["send", 0, "b"], ["recv", 0, "a"]]]}
    calls = read_calls(crossing)
    with pytest.raises(ValueError, match="rejected"):
        certificate(None, calls, check_calls(calls))


def test_the_checker_is_small_and_needs_nothing() -> None:
    text = CHECKER.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").split(".")[0])
    assert imported <= sys.stdlib_module_names
    assert imported.isdisjoint({"pipedsl", "verify", "importlib"})


def test_the_command(tmp_path: Path) -> None:
    document, subject = certified(word_program(one_f_one_b(2, 2)))
    good, bad, program = (tmp_path / name for name in ("good.json", "bad.json", "program.json"))
    good.write_text(json.dumps(document))
    bad.write_text(json.dumps(changed(document, ("ranks", 1, "x", 0), 1)))
    program.write_text(json.dumps(subject))
    absent = tmp_path / "absent.json"
    for arguments, status, word in (
        ((good, program), 0, "accepted: safe on"),
        ((bad, program), 1, "refused: sha256"),
        ((program, good), 1, "refused: "),
        ((good, absent), 2, "absent"),
        ((good,), 2, "usage"),
    ):
        command = [sys.executable, "-I", "-S", str(CHECKER), *map(str, arguments)]  # no packages can be found
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, (arguments, done)
        assert word in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


Document = dict[str, Any]


def swapped(column: Any, i: int, j: int) -> None:
    column[i], column[j] = column[j], column[i]


def swap_entries(document: Document, rank: int, i: int, j: int) -> None:
    entry = document["ranks"][rank]
    letters = list(entry["do"])
    for column in (letters, entry["x"], entry["y"]):
        swapped(column, i, j)
    entry["do"] = "".join(letters)


def drop_entry(document: Document, rank: int, i: int) -> None:
    entry = document["ranks"][rank]
    entry["do"] = entry["do"][:i] + entry["do"][i + 1 :]
    del entry["x"][i], entry["y"][i]


def extra_message(document: Document) -> None:
    """One that rank 0 sends to rank 1 for nothing, in perfect order."""
    tag = len(document["tags"])
    document["tags"].append("F0@7")
    steps = sum(letter in "sr" for letter in document["ranks"][0]["do"])
    for rank, letter in ((0, "s"), (1, "r")):
        entry = document["ranks"][rank]
        request = sum(each in "sr" for each in entry["do"])
        entry["do"] += letter + "w"
        entry["x"] += [1 - rank, request]
        entry["y"] += [tag, 0]
    messages = document["orders"][0]["messages"]
    document["orders"][0]["messages"] = [step + (step >= steps) for step in messages] + [steps]


def one_later(document: Document) -> None:
    document["program"]["params"]["m"] += 1


def claims(document: Document, transports: list[str]) -> None:
    document["orders"][0]["transports"] = transports


FORGERIES: dict[str, tuple[Callable[[Document], None], str]] = {
    "the order of messages": (lambda d: swapped(d["orders"][0]["messages"], 0, -1), "starts or finishes too early"),
    "a backward before its forward": (lambda d: swap_entries(d, 1, 2, 4), "rank 1, entry 2"),
    "an activation freed while it is sent": (lambda d: swap_entries(d, 0, 6, 7), "rank 0, entry 6: B frees"),
    "data used before it is there": (lambda d: swap_entries(d, 1, 2, 3), "rank 1, entry 2: F runs before its data"),
    "a backward dropped": (lambda d: drop_entry(d, 0, 17), "rank 0: a backward is missing"),
    "a send before it is made": (lambda d: swap_entries(d, 0, 0, 1), "rank 0, entry 0"),
    "a message dropped on one side": (lambda d: drop_entry(d, 0, d["ranks"][0]["do"].index("s")), "rank 0"),
    "a wait dropped": (lambda d: drop_entry(d, 0, d["ranks"][0]["do"].index("w")), "a wait is missing"),
    "a message more": (extra_message, "rank 0, entry"),
    "activations": (lambda d: d["memory"]["activations_after"][0].__setitem__(1, 1), "activations_after[0][1]"),
    "peak activations": (lambda d: d["memory"]["peak_activations"].__setitem__(0, 1), "peak_activations[0]"),
    "the peak of the memory": (lambda d: d["memory"]["peak"].__setitem__(1, 0), "memory.peak[1]"),
    "a cap below the peak": (lambda d: d["memory"]["cap"].__setitem__(0, 1), "memory.cap[0]"),
    "another program's parameters": (one_later, "an operation or a message is missing"),
    "another name": (lambda d: d["program"].__setitem__("schedule", "other"), "the program's schedule"),
    "another placement": (lambda d: d["program"]["placement"].reverse(), "no such stage on this rank"),
    "a transport that there is not": (lambda d: claims(d, ["mpi"]), "'mpi'"),
    "a transport twice": (lambda d: claims(d, ["gloo", "gloo"]), "claimed twice"),
    "another version": (lambda d: d.__setitem__("version", 2), "version"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_refused_with_the_reason(name: str) -> None:
    document, subject = certified(word_program(one_f_one_b(2, 3)))
    forge, reason = FORGERIES[name]
    forge(document)
    with pytest.raises(Refused, match=r"sha256|version"):
        check(document, subject)
    with pytest.raises(Refused) as refused:
        check(signed(document), subject)
    assert reason in str(refused.value)


def sum_of(document: Document, rank: int, number: int = 0) -> int:
    """The place of one of a rank's sums."""
    return [k for k, letter in enumerate(document["ranks"][rank]["do"]) if letter == "="][number]


def drop_sums(document: Document, rank: int) -> None:
    """Those of stage 1 on one rank, in perfect order for the rest."""
    at = sum_of(document, rank)
    step = sum(letter in "sr=" for each in document["ranks"][:rank] for letter in each["do"])
    step += sum(letter in "sr=" for letter in document["ranks"][rank]["do"][:at])
    drop_entry(document, rank, at)
    messages = [each for each in document["orders"][0]["messages"] if each != step]
    document["orders"][0]["messages"] = [each - (each > step) for each in messages]


def alone(document: Document) -> None:
    """The two ends of the first sum as sums of their own, each at its place."""
    for rank in range(2):
        document["ranks"][rank]["y"][sum_of(document, rank)] = 1 << rank
    first, second = (document["ranks"][rank]["do"] for rank in range(2))
    steps = [sum(letter in "sr=" for letter in do[: sum_of(document, rank)]) for rank, do in enumerate((first, second))]
    own, other = steps[0], steps[1] + sum(letter in "sr=" for letter in first)
    messages = document["orders"][0]["messages"]
    messages.insert(messages.index(own), other)


SUMS: dict[str, tuple[Callable[[Document], None], str]] = {
    "over one rank alone": (alone, "not over all of its ranks"),
    "over a rank that is not itself": (
        lambda d: d["ranks"][0]["y"].__setitem__(sum_of(d, 0), 2),
        "rank 0, entry",
    ),
    "over a rank that there is not": (lambda d: d["ranks"][0]["y"].__setitem__(sum_of(d, 0), 5), "may not stand here"),
    "of another stage": (
        lambda d: [swapped(d["ranks"][rank]["x"], sum_of(d, rank), sum_of(d, rank, 1)) for rank in range(2)],
        "it sums too early",
    ),
    "of one rank dropped": (lambda d: drop_sums(d, 0), "messages are left over"),
    "of both ranks dropped": (
        lambda d: [drop_sums(d, 0), drop_sums(d, 1)],
        "tags: one stands there twice, or names no",
    ),
    "twice": (lambda d: twice(d), "a second time"),
}


def twice(document: Document) -> None:
    """The last sum of both ranks once more, in perfect order."""
    ends = []
    for rank in range(2):
        entry = document["ranks"][rank]
        at = sum_of(document, rank, 1)
        entry["do"] = entry["do"][: at + 1] + "=" + entry["do"][at + 1 :]
        for column in (entry["x"], entry["y"]):
            column.insert(at + 1, column[at])
        ends.append(sum(letter in "sr=" for letter in entry["do"]))
    messages = document["orders"][0]["messages"]
    new = ends[0] - 1  # the first step of it; rank 1's steps are one later
    document["orders"][0]["messages"] = [each + (each >= new) for each in messages] + [new]


@pytest.mark.parametrize("name", SUMS)
def test_forged_sums_are_refused_with_the_reason(name: str) -> None:
    document, subject = certified(summed())
    assert check(document, subject)
    forge, reason = SUMS[name]
    forge(document)
    with pytest.raises(Refused) as refused:
        check(signed(document), subject)
    assert reason in str(refused.value)


def test_a_stage_that_one_rank_holds_twice_gets_none() -> None:
    words = [["F0/0", "F0/1", "B0/0", "B0/1", "REDUCE/0", "REDUCE/1"]]
    program = replace(word_program(words, microbatches=1), placement=np.zeros((2, 1), np.int32))
    report = verify(program)
    assert report.calls is not None
    with pytest.raises(ValueError, match="one rank holds several copies"):
        certificate(program, report.calls, report)


def test_stages_of_one_rank_keep_their_order() -> None:
    document, subject = certified(PROGRAMS["the V"]())
    swap_entries(document, 1, document["ranks"][1]["do"].index("FF"), document["ranks"][1]["do"].index("FF") + 1)
    with pytest.raises(Refused, match="F runs before its data is made"):
        check(signed(document), subject)


def test_microbatches_that_never_run_are_missed() -> None:
    document, subject = certified(PROGRAMS["one rank"]())
    document["program"]["params"]["m"] = subject["params"]["m"] = 2
    with pytest.raises(Refused, match="an operation or a message is missing"):
        check(signed(document), subject)


def test_a_certificate_is_for_one_program() -> None:
    document, _ = certified(word_program(one_f_one_b(2, 3)))
    _, other = certified(word_program(gpipe(2, 3)))
    with pytest.raises(Refused, match=r"the program's ranks\[0\]\[2\]"):
        check(document, other)


def test_a_deadlock_has_no_evidence() -> None:
    """Both ranks send first: safe when buffered and on gloo; no copy of that evidence serves another transport."""
    subject = {"ranks": [[["isend", 1, "a"], ["irecv", 1, "b"], ["wait", 0], ["wait", 1]],
                         [["isend", 0, "b"], ["irecv", 0, "a"], ["wait", 0], ["wait", 1]]]}  # fmt: skip
    calls = read_calls(subject)
    document = certificate(None, calls, check_calls(calls, ("buffered", "gloo")))
    assert check(document, subject) == "safe on buffered, gloo"
    launches = [0, 3, 6, 9]
    for name in STREAMS.keys() - {"buffered", "gloo", "group-per-direction-warm"}:
        forged = copy.deepcopy(document)
        forged["orders"][0]["transports"] = ["buffered", "gloo", name]
        forged["orders"][0]["events"] = launches + forged["orders"][0]["events"]
        with pytest.raises(Refused, match=f"{name}: step"):
            check(signed(forged), subject)
    forged["orders"][0]["transports"] = ["gloo", "group-per-direction-warm"]
    assert check(signed(forged), subject) == "safe on gloo, group-per-direction-warm"


def test_batches_of_a_lazy_group_share_one_stream() -> None:
    """A ring in which everyone's first batch sends: safe on gloo; the group's one stream holds the receives back."""
    ring = [[["batch", [["isend", (r + 1) % 3, f"{r}"]]], ["batch", [["irecv", (r + 2) % 3, f"{(r + 2) % 3}"]]],
             ["wait", 0], ["wait", 1]] for r in range(3)]  # fmt: skip
    calls = read_calls({"ranks": ring})
    document = certificate(None, calls, check_calls(calls, ("gloo",)))
    assert check(document, {"ranks": ring}) == "safe on gloo"
    claims(document, ["nccl-lazy-warm"])
    with pytest.raises(Refused, match=r"nccl-lazy-warm: step \d starts"):
        check(signed(document), {"ranks": ring})


def test_nothing_starts_before_its_host_has_launched_it() -> None:
    subject = {"ranks": [[["send", 1, "a"]], [["recv", 0, "a"]]]}
    calls = read_calls(subject)
    document = certificate(None, calls, check_calls(calls, ("nccl-eager",)))
    document["orders"] = [{"transports": ["nccl-eager"], "events": [0, 3, 1, 4, 2, 5]}]
    assert check(signed(document), subject) == "safe on nccl-eager"
    for events, why in (
        ([0, 1, 3, 4, 2, 5], None),
        ([0, 3, 2, 1, 4, 5], "step 0 starts or finishes"),
        ([0, 3, 1, 2, 4, 5], "steps 0 and 1 are one message"),
        ([0, 3, 4, 5, 1, 2], "steps 0 and 1 are one message"),
        ([1, 0, 3, 4, 2, 5], "step 0 is launched or starts"),
        ([0, 3, 1, 4, 2], "never happens"),
        ([3, 1, 4, 2, 5], "never happens"),
        ([0, 3, 1, 4, 2, 5, 6], "event 6: none such"),
        ([0, 3, 1, 4, 2, 5, 0], "event 6: none such, or it happens twice"),
    ):
        document["orders"][0]["events"] = events
        if why is None:
            assert check(signed(document), subject)
        else:
            with pytest.raises(Refused, match=why):
                check(signed(document), subject)


def test_nccl_does_not_define_messages_to_oneself() -> None:
    subject = {"ranks": [[["batch", [["isend", 0, "a"], ["irecv", 0, "a"]]], ["wait", 0]]]}
    calls = read_calls(subject)
    document = certificate(None, calls, check_calls(calls, ("gloo",)))
    assert check(document, subject) == "safe on gloo"
    claims(document, ["nccl-eager-warm"])
    with pytest.raises(Refused, match="rank 0 sends to itself"):
        check(signed(document), subject)


def test_tags_stand_once_and_for_something() -> None:
    document, subject = certified(PROGRAMS["by hand"]())
    for tag in ("F0@1", "more"):
        forged = changed(document, ("tags",), [*document["tags"], tag])
        with pytest.raises(Refused, match="tags: one stands there twice, or names no message"):
            check(signed(forged), subject)


def test_impossible_sizes() -> None:
    document, subject = certified(sized())
    more = [2 * size for size in document["memory"]["activation"]]
    for name, value, why in (
        ("held_by_w", more, "memory.held_by_w: more than"),
        ("weights", [-1, 0, 0], "memory: a size is negative"),
        ("parts", 2, "memory.held_by_w: .* no multiple"),
    ):
        other = subject if name == "parts" else changed(subject, ("memory", name), value)
        with pytest.raises(Refused, match=why):
            check(signed(changed(document, ("memory", name), value)), other)


def altered_leaves(value: Any) -> list[Any]:
    if isinstance(value, bool) or value is None:
        return [0, 1, -1]
    if isinstance(value, int):
        return [value - 1, value + 1, -1 - value, str(value), None, value + 2**70]
    if isinstance(value, str) and set(value) <= set("FBIWsrSRw["):
        letters = {value[:i] + letter + value[i + 1 :] for i in range(len(value)) for letter in "FBIWsrSRw[x"}
        return [*sorted(letters - {value}), value[:-1], value + "F"]
    return [value + "0", "", 0] if isinstance(value, str) else []


@pytest.mark.parametrize("name", [*SMALL, "a batch"])
def test_every_altered_entry_is_noticed(name: str) -> None:
    """Even where the digest is made to fit: nothing in a certificate is beyond the evidence."""
    if name == "a batch":
        subject: dict[str, Any] = BATCH
        document = certificate(None, read_calls(BATCH), check_calls(read_calls(BATCH), ("gloo", "nccl-lazy")))
    else:
        document, subject = certified(PROGRAMS[name]())
    count = 0
    for path in paths(document):
        for value in altered_leaves(at(document, path)):
            forged = changed(document, path, value)
            assert not accepted(forged, subject), (path, value)
            assert path == ("sha256",) or not accepted(signed(forged), subject), (path, value)
            count += 1
    assert count > 100


STRANGE = (None, True, False, 0, -1, 2**70, "", "x", "\ud800", [], {}, [[]], [{}], [None], {"x": []}, [True], ["s"])


@pytest.mark.parametrize("name", ["by hand", "chimera"])
def test_wrong_types_are_refused_and_nothing_else_happens(name: str) -> None:
    document, subject = certified(PROGRAMS[name]())
    for path in paths(document):
        for value in STRANGE:
            if json.dumps(value) != json.dumps(at(document, path)):
                forged = changed(document, path, value)
                if path[:1] not in ((), ("sha256",)):
                    forged = signed(forged)
                assert not accepted(forged, subject), (path, value)
    for path in paths(subject):
        for value in STRANGE:
            if path != ("memory",) and json.dumps(value) != json.dumps(at(subject, path)):
                assert not accepted(document, changed(subject, path, value)), (path, value)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"nul", b"[1, NaN]", b"[Infinity]", b"[1.0]", b"[1e400]", b'{"a": 1, "a": 2}', b"\xff", b"\xef\xbb\xbf{}",
        b"[" * 200_000, b'{"ranks":' * 50_000, b"[" * 900 + b"]" * 900, b"1" * 10_000, b'"\\ud800"', b"null", b"0",
        b'{"format": "pipedsl certificate"}',
    ],
)  # fmt: skip
def test_hostile_texts(text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, subject = certified(word_program(one_f_one_b(2, 2)))
    files = {name: tmp_path / name for name in ("certificate", "program", "hostile")}
    files["certificate"].write_text(json.dumps(document))
    files["program"].write_text(json.dumps(subject))
    files["hostile"].write_bytes(text)
    assert main([str(files["hostile"]), str(files["program"])]) == 1
    assert main([str(files["certificate"]), str(files["hostile"])]) == 1
    assert capsys.readouterr().out.count("refused: ") == 2
