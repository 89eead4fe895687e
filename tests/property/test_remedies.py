"""Every help that is offered, and all mended calls, run by the explorer that was written apart from the verifier."""

import pytest
from explore import TRANSPORTS, Machine, run
from random_calls import random_calls

from pipedsl.calls_json import read_calls, write_calls
from verify import check_calls, mend_calls
from verify.remedies import find_helps
from verify.transports import BY_NAME
from verify.trial import Help

PROGRAMS = 300


def ends(name: str, help_: Help, seed: int) -> bool:
    """Whether the helped calls reach their end on the helped transport."""
    if help_.per_direction:
        name = "group-per-direction-warm" if name.endswith("-warm") else "group-per-direction"
    document = write_calls(help_.calls)
    return not run(document, name, seed, warm=help_.assumed.warm, buffers=dict(help_.assumed.buffers))


@pytest.mark.parametrize("part", range(3))
def test_every_help_helps(part: int) -> None:
    tried: dict[str, int] = {}
    for seed in range(part * PROGRAMS // 3, (part + 1) * PROGRAMS // 3):
        calls = read_calls(random_calls(seed))
        states = check_calls(calls, TRANSPORTS, remedies=0).transports
        helps, stopped = find_helps(calls, [BY_NAME[name] for name, state in states.items() if state == "deadlock"])
        assert not stopped
        for name, help_ in helps:
            assert ends(name, help_, seed), (seed, name, help_.text)
            for kind in help_.kind.split(" + "):
                tried[kind] = tried.get(kind, 0) + 1
        mendable = mend_calls(calls).calls is not None
        for name, state in states.items():
            assert (state == "deadlock" and mendable) <= (name in {each for each, _ in helps} or state != "deadlock")
    assert tried.keys() == {"warm-up", "batch", "order", "group-per-direction", "buffer"}
    assert min(tried.values()) > 5


def test_a_help_is_no_larger_than_it_must_be() -> None:
    """One edge less, or room for one message less, and the explorer hangs."""
    edges = rooms = 0
    for seed in range(150):
        calls = read_calls(random_calls(seed))
        states = check_calls(calls, TRANSPORTS, remedies=0).transports
        helps, _ = find_helps(calls, [BY_NAME[name] for name, state in states.items() if state == "deadlock"])
        for name, help_ in helps:
            document, assumed = write_calls(help_.calls), help_.assumed
            if help_.per_direction:
                continue
            for edge in assumed.warm if help_.kind == "warm-up" else ():
                assert run(document, name, seed, warm=assumed.warm - {edge}), (seed, name, help_.text)
                edges += 1
            for channel, room in assumed.buffers.items() if help_.kind == "buffer" else ():
                fewer = {**assumed.buffers, channel: room - 1}
                assert run(document, name, seed, buffers=fewer), (seed, name, help_.text)
                rooms += 1
    assert edges > 10
    assert rooms > 10


def test_mended_calls_are_the_same_messages_and_never_hang() -> None:
    mended = 0
    for seed in range(PROGRAMS):
        document = random_calls(seed)
        result = mend_calls(read_calls(document))
        if result.calls is None:
            assert result.reason
            assert check_calls(read_calls(document), ["buffered"], remedies=0).diagnostics, seed
            continue
        mended += 1
        after = write_calls(result.calls)
        assert messages(after) == messages(document)
        assert not any(run(after, name, seed) for name in (*TRANSPORTS, "group-per-direction")), (seed, after)
        assert own_order(after) == own_order(document)
    assert mended > PROGRAMS / 3


def messages(document: dict) -> list:
    """Every end of every message."""
    return sorted(
        (rank, member[0].lstrip("i"), member[1], str(member[2]))
        for rank, calls in enumerate(document["ranks"])
        for call in calls
        for member in (call[1] if call[0] == "batch" else [call])
        if member[0] != "wait"
    )


def own_order(document: dict) -> list[list]:
    """What each rank may not have changed: its sends, in their order, and what each of them comes after."""
    kept = []
    for calls in document["ranks"]:
        requests, arrived, row = [], [], []
        for call in calls:
            if call[0] == "wait":
                arrived += [str(member[1:]) for member in requests[call[1]] if member[0] == "irecv"]
                continue
            members = call[1] if call[0] == "batch" else [call]
            if call[0] not in ("send", "recv"):
                requests.append(members)
            if call[0] == "recv":
                arrived.append(str(call[1:]))
            row += [(str(m[1:]), sorted(arrived)) for m in members if m[0].endswith("send")]
        kept.append(row)
    return kept


def test_the_machine_with_room_for_everything_is_the_buffered_one() -> None:
    for seed in range(40):
        document = random_calls(seed)
        if any(call[0] == "batch" for calls in document["ranks"] for call in calls):
            continue
        ranks = range(len(document["ranks"]))
        rooms = {(a, b): 100 for a in ranks for b in ranks if a != b}
        machine = Machine(document, "gloo", buffers=rooms)
        unmatched = any(part.partner is None for call in machine.calls for part in call.parts)
        if not unmatched:
            assert run(document, "gloo", seed, buffers=rooms) == run(document, "buffered", seed)
