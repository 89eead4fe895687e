"""Accepts or refuses a certificate: evidence that a pipeline program and its communication are safe.

    python verify/checker.py certificate.json program.json

The program is what `pipedsl expand --format json` writes, with `--calls` or without. Exit status: 0 accepted,
1 refused, 2 wrong usage. docs/certificate.md describes the format and argues why what is accepted is true.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

FORMAT, VERSION, MOST_BYTES = "pipedsl certificate", 1, 2**30
canonical = partial(json.dumps, sort_keys=True, separators=(",", ":"))
KEYS = ("format", "version", "sha256", "program", "tags", "ranks", "orders", "memory")
# The letters of a rank's program. F, B, I and W: x is replica * stages + stage (a place), y the microbatch.
# Messages: x is the peer, y the tag. Besides, `w` waits for the rank's request x, `[` makes a batch of the next x, and
# `=` sums what tag x names over the ranks that are bits of y.
MESSAGES = {"S": "send", "R": "recv", "s": "isend", "r": "irecv"}
# How far a microbatch is at a place: 0 not begun, 1 after F, 2 after I, 3 after B or W. What each needs and makes.
LEVELS = {"F": (0, 1), "B": (1, 3), "I": (1, 2), "W": (2, 3)}
SIZES = ("activation", "held_by_w", "input", "output", "weights", "gradients", "optimizer")
# What of a rank's calls run one after another; where there is no such thing, messages are matched by their tags.
STREAMS = {"buffered": "", "gloo": "", "nccl-lazy": "pair", "nccl-lazy-warm": "pair", "nccl-eager": "rank"}
STREAMS |= {"nccl-eager-warm": "rank", "group-per-direction-warm": "direction"}
COLD = ("nccl-lazy", "nccl-eager")  # the first use of a communicator or direction holds the host
ALSO = {"buffered": "gloo", "nccl-lazy-warm": "nccl-lazy", "nccl-eager-warm": "nccl-eager"}  # rules among those of


class Refused(Exception): ...  # where, and why


def need(holds: bool, where: str, why: str, *values: Any) -> None:
    if not holds:
        raise Refused(f"{where}: {why.format(*values) if values else why}")


def read(path: str) -> Any:
    """The value in a file: no floats, no key twice, within a size. Raises OSError and Refused."""
    with open(path, "rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    need(len(data) <= MOST_BYTES, ascii(path), f"larger than {MOST_BYTES} bytes")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len(dict(pairs)) == len(pairs), ascii(path), "a key stands twice in one object")
        return dict(pairs)

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_float=int, parse_constant=int)
    except ValueError as error:
        raise Refused(f"{path!a}: {str(error)[:200]!a}") from None


def same(claimed: Any, true: Any, where: str) -> None:
    """Refuses what is not as it should be, at the first place where it is not."""
    if canonical(claimed) != canonical(true):
        if type(claimed) is type(true) is list and len(claimed) == len(true):
            for index, (one, other) in enumerate(zip(claimed, true, strict=True)):
                same(one, other, f"{where}[{index}]")
        need(False, where, f"expected {canonical(true)[:100]}, not {canonical(claimed)[:100]}")


def fields(value: Any, where: str, *names: str) -> list[Any]:
    """The values of an object that has these keys and no other."""
    need(type(value) is dict and value.keys() == set(names), where, f"expected an object with {', '.join(names)}")
    return [value[name] for name in names]


def items(value: Any, where: str, kind: type | None, count: int | None = None) -> list[Any]:
    """A list, of values of one type and `count` of them if given."""
    right = type(value) is list and count in (None, len(value)) and (not kind or set(map(type, value)) <= {kind})
    need(right, where, f"expected a list of {count or 'any'} {kind.__name__ if kind else 'values'}")
    return list(value)


class Calls(NamedTuple):
    """Steps: sends, receives, sums, batches, numbered as issued, rank by rank; `owner`: their ranks. `entries`: of each
    (letter, x, y, step, batched); `messages`: (step, rank, sends, peer, tag, batched), of a sum one each way for each
    whom it meets, tagged (name, ranks)."""

    tags: list[str]
    entries: list[list[tuple[str, int, int, int, bool]]]
    messages: list[tuple[int, int, bool, int, str | tuple[str, int], bool]]
    owner: list[int]


def read_calls(ranks: Any, tags: Any) -> Calls:
    """The columns of a certificate as calls. Every request is waited for once, after it is made."""
    calls, used = Calls(items(tags, "tags", str), [], [], []), set[int]()
    for rank, columns in enumerate(items(ranks, "ranks", dict)):
        letters, xs, ys = fields(columns, f"ranks[{rank}]", "do", "x", "y")
        need(type(letters) is str, f"ranks[{rank}].do", "expected a string")
        xs, ys = (items(column, f"ranks[{rank}]", int, len(letters)) for column in (xs, ys))
        requests, waited, left = list[int](), set[int](), 0
        entries: list[tuple[str, int, int, int, bool]] = []
        for letter, x, y in zip(letters, xs, ys, strict=True):
            step, batched, new = -1, left > 0, len(calls.owner)
            if letter in MESSAGES and 0 <= x < len(ranks) and 0 <= y < len(tags) and not (batched and letter in "SR"):
                step, left = (new - 1, left - 1) if batched else (new, 0)
                calls.messages.append((step, rank, letter in "Ss", x, tags[y], batched))
                used.add(y)
            elif letter == "[" and x > 0 == y and not batched:
                left = x
            elif letter == "=" and 0 <= x < len(tags) and 0 < y < 2 ** len(ranks) and y >> rank & 1 and not batched:
                others, what = [r for r in range(len(ranks)) if y >> r & 1 and r != rank], (tags[x], y)
                calls.messages.extend((new, rank, way, peer, what, False) for peer in others for way in (False, True))
                step, used = new, used | {x}
            elif letter == "w" and 0 <= x < len(requests) and x not in waited and y == 0 and not batched:
                waited.add(x)
                step = requests[x]
            else:
                need(letter in LEVELS and not batched, f"rank {rank}, entry {len(entries)}", "it may not stand here")
            if letter in "SRsr[=" and not batched:
                calls.owner.append(rank)
                requests += [new] if letter in "sr[" else []
            entries.append((letter, x, y, step, batched))
        need(not left and len(waited) == len(requests), f"rank {rank}", "a batch does not end, or a wait is missing")
        calls.entries.append(entries)
    need(len({*tags}) == len(tags) == len(used), "tags", "one stands there twice, or names no message")
    return calls


def matches(calls: Calls, transport: str) -> Iterator[tuple[int, int]]:
    """(sending step, receiving step) of every message. Refuses what is left over, and what meets another message."""
    stream, ends = STREAMS[transport], (dict[Any, list[Any]](), dict[Any, list[Any]]())
    for step, rank, sends, peer, tag, batched in calls.messages:
        group = (batched and stream == "pair") if stream else tag
        ends[sends].setdefault((rank, peer, group) if sends else (peer, rank, group), []).append((step, tag))
        need(rank != peer or not stream, "calls", "rank {} sends to itself, which NCCL does not define", rank)
    for key in ends[0].keys() | ends[1].keys():
        received, sent = (each.get(key, []) for each in ends)
        need(len(received) == len(sent), f"from rank {key[0]} to rank {key[1]}", "messages are left over")
        for (send, tag), (receive, wanted) in zip(sent, received, strict=True):
            need(tag == wanted, "calls", "{!a} meets the receive of {!a}", tag, wanted)
            yield send, receive


def times_of(order: Any, where: str, calls: Calls, transports: list[str]) -> list[list[int]]:
    """When each step is launched (on cold transports), starts and finishes: events 3 step, 3 step + 1, 3 step + 2."""
    if "messages" in order:
        meets = dict[int, list[int]]()
        for send, receive in matches(calls, transports[0]):
            meets.setdefault(send, [send]).append(receive)
        sends = items(order["messages"], where, int)
        events = [3 * step + k for send in sends for k in range(3) for step in meets.get(send, [send])]
    else:
        events = items(order["events"], where, int)
    when = [-1] * (3 * len(calls.owner))
    for time, event in enumerate(events):
        need(0 <= event < len(when) and when[event] < 0, where, "event {}: none such, or it happens twice", time)
        when[event] = time
    times = [when[k::3] for k in range(3)]
    needed = times if set(transports) & set(COLD) else times[1:]
    need(not any(-1 in column for column in needed), where, "some event never happens")
    return times


def replay(calls: Calls, transport: str, times: list[list[int]], where: str) -> None:
    """Refuses an event that comes before another that it waits for."""
    (launch, start, finish), stream = times, STREAMS[transport]
    last = dict[tuple[int, int], int]()  # the last step on each stream
    for step, rank, sends, peer, _, batched in calls.messages if stream else ():
        queue = rank, {"pair": -1 if batched else peer, "direction": 2 * peer + sends}.get(stream, 0)
        before, last[queue] = last.get(queue, step), step
        need(before == step or finish[before] < start[step], where, "step {} starts or finishes too early", step)
    held = [*launch, -1]  # until when a step holds its host
    for entries in calls.entries:
        gate = -1  # when all that was waited for is over
        for letter, _, _, step, _ in entries:
            waited = letter not in "SRsr=" or gate < start[step] < finish[step]
            need(waited, where, "step {} starts or finishes too early", step)
            gate = max(gate, finish[step]) if letter in "SRw=" else gate
            held[step] = finish[step] if letter == "=" else held[step]
    for send, receive in matches(calls, transport):
        met = start[send] < finish[receive] and (start[receive] < finish[send] or transport == "buffered")
        need(met, where, "steps {} and {} are one message; one finishes before the other starts", send, receive)
    if transport in COLD:
        reached = [held[s - 1] if s and calls.owner[s - 1] == calls.owner[s] else -1 for s in range(len(launch))]
        groups, gathered = first_uses(calls, stream == "pair"), reached[:]
        for step, group in enumerate(groups):
            gathered[group] = max(gathered[group], reached[step])
        for step, group in enumerate(groups):
            need(gathered[group] < launch[step] < start[step], where, "step {} is launched or starts too early", step)


def first_uses(calls: Calls, lazy: bool) -> list[int]:
    """For each step a member of its group: hosts that wait for each other at a first use; those at a sum do anyway."""
    uses: dict[Any, dict[int, int]] = {}
    for step, rank, sends, peer, _, batched in (each for each in calls.messages if type(each[4]) is str):
        ends, group = (rank, peer) if sends else (peer, rank), lazy and batched
        uses.setdefault((2, "direction", group, ends), {}).setdefault(rank, step)
        if lazy:
            use = (len(calls.entries), "group") if group else (2, "pair", min(ends), max(ends))
            uses.setdefault(use, {}).setdefault(rank, step)
    together = dict[int, set[int]]()
    for (needed, *what), steps in uses.items():
        need(len(steps) == needed, f"first use of {what}", "some rank never comes to it")
        union = set[int]().union(*(together.get(step, {step}) for step in steps.values()))
        together.update(dict.fromkeys(union, union))
    return [min(together.get(step, {step})) for step in range(len(calls.owner))]


class Program(NamedTuple):
    """`placement[place]`: a rank; `sources[place]`: those of the stages before and after, or -1; `base[rank]`: what is
    always in memory; `changes[stage][letter]`: memory taken, memory given back, change of the activations held.
    `due[message]`: (source, target, backward, place that makes it, place that needs it, microbatch, size).
    """

    stages: int
    microbatches: int
    placement: list[int]
    sources: list[tuple[int, int]]
    due: dict[str, tuple[int, int, bool, int, int, int, int]]
    changes: list[dict[str, tuple[int, int, int]]]
    base: list[int]

    def operation(self, name: str, place: int, microbatch: int | None) -> list[Any]:
        return [name, place % self.stages, microbatch, place // self.stages][: 3 + (len(self.placement) > self.stages)]


def read_program(head: Any, memory: dict[str, Any], ranks: int, operations: int) -> Program:
    """The program of a certificate but for its operations, of which there are this many."""
    _, params, stages, copies = fields(head, "program", "schedule", "params", "stages", "placement")
    need(type(params) is dict and canonical(params.get("p")) == str(ranks), "program.params.p", f"expected {ranks}")
    need(type(stages) is int and 0 < stages <= operations, "program.stages", "no number of stages")
    nested = type(copies) is list and len(copies) > 1 and type(copies[0]) is list
    placement = [r for copy in (copies if nested else [copies]) for r in items(copy, "program.placement", int, stages)]
    need(0 <= min(placement) <= max(placement) < ranks, "program.placement", "no such rank")
    m, parts = params.get("m"), memory["parts"]
    right = type(m) is type(parts) is int and 0 < m <= operations // len(placement) and parts > 0
    need(right, "program.params.m or memory.parts", "no such number")
    sizes = [items(memory[name], f"memory.{name}", int, stages) for name in SIZES]
    need(min(map(min, sizes)) >= 0, "memory", "a size is negative")
    whole, held, inputs, output, *constant = sizes
    changes = []
    for size, rest, more in zip(whole, held, inputs, strict=True):
        kept, left = divmod(parts * rest, size) if size else (parts, 0)
        need(rest <= size and not left, "memory.held_by_w", "more than the activation, or no multiple of a part of it")
        forward, backward_input = (size + more, 0, parts), (0, size + more - rest, kept - parts)
        changes.append({"F": forward, "B": (0, size + more, -parts), "I": backward_input, "W": (0, rest, -kept)})
    program = Program(stages, m, placement, [], {}, changes, [0] * ranks)
    for at, rank in enumerate(placement):
        replica, stage = divmod(at, stages)
        program.base[rank] += sum(column[stage] for column in constant)
        program.sources.append((placement[at - 1] if stage else -1, placement[at + 1] if stage < stages - 1 else -1))
        for backward, source in enumerate(program.sources[at]):
            for y in range(m) if source not in (rank, -1) else ():
                name = f"{'FB'[backward]}{y}@{stage}" + (f"/{replica}" if nested else "")
                maker, size = (at + 1, output[stage]) if backward else (at - 1, output[stage - 1])
                program.due[name] = source, rank, backward > 0, maker, at, y, size
    return program


def check_program(head: Any, memory: Any, calls: Calls, operations: int) -> list[list[list[Any]]]:
    """Structure, messages and memory of the program that the calls carry out; each rank's operations and messages."""
    evidence, ranks = ("activations_after", "peak_activations", "peak"), len(calls.entries)
    fields(memory, "memory", *SIZES, "unit", "cap", "parts", *evidence)
    program = read_program(head, memory, ranks, operations)
    done, written, *computed = zip(*(check_rank(program, calls, rank) for rank in range(ranks)), strict=True)
    due = len(program.placement) * program.microbatches + 2 * len(program.due)
    need(sum(done) == due, "ranks", "an operation or a message is missing")
    for name, values in zip(evidence, computed, strict=True):
        same(memory[name], list(values), f"memory.{name}")
    need(type(memory["unit"]) is int and memory["unit"] > 0, "memory.unit", "expected an integer above 0")
    for rank, cap in enumerate(items(memory["cap"], "memory.cap", None, ranks)):
        need(cap is None or (type(cap) is int and cap >= memory["peak"][rank]), f"memory.cap[{rank}]", "below the peak")
    return list(written)


def check_rank(program: Program, calls: Calls, rank: int) -> list[Any]:
    """How much is done, the operations, activations after each computation, their peak, the memory's peak."""
    level, under_way = dict[tuple[int, int], int](), dict[int, list[tuple[Callable[[Any], None], Any, int]]]()
    seen, arrived, sending = set[tuple[str, bool]](), set[tuple[bool, int, int]](), set[tuple[int, int]]()
    written, after, held, summed = list[list[Any]](), list[int](), 0, set[int]()
    memory = most = program.base[rank]
    for number, (letter, x, y, step, _) in enumerate(calls.entries[rank]):
        where = f"rank {rank}, entry {number}"
        if letter in LEVELS:
            (before, now), backward = LEVELS[letter], letter != "F"
            inside = 0 <= x < len(program.placement) and 0 <= y < program.microbatches
            need(inside and program.placement[x] == rank, where, "no such microbatch, or no such stage on this rank")
            need(level.get((x, y), 0) == before, where, "{} runs twice, or before what it needs", letter)
            if letter != "W":
                source = program.sources[x][backward]
                local = source != rank or level.get((x + 1 if backward else x - 1, y), 0) > backward
                there = source in (rank, -1) or (backward, x, y) in arrived
                need(local and there, where, "{} runs before its data is made or has been waited for", letter)
                need((x, y) not in sending, where, "{} frees what may still be under way", letter)
            level[x, y] = now
            taken, given, change = program.changes[x % program.stages][letter]
            most, memory, held = max(most, memory + taken), memory + taken - given, held + change
            after.append(held)
            written.append(program.operation(letter, x, y))
        elif letter in MESSAGES:
            tag, sends = calls.tags[y], letter in "Ss"
            need(tag in program.due and (tag, sends) not in seen, where, "no message of the program, or a second time")
            source, target, backward, maker, user, mb, size = program.due[tag]
            need((rank, x) == ((source, target) if sends else (target, source)), where, "not between these ranks")
            need(not sends or level.get((maker, mb), 0) > backward, where, "{} is sent before it is made", tag)
            seen.add((tag, sends))
            sending.update({(maker, mb)} if sends else ())
            settle, what = (sending.discard, (maker, mb)) if sends else (arrived.add, (backward, user, mb))
            under_way.setdefault(step, []).append((settle, what, size))
            memory += size
            most = max(most, memory)
            name, at = f"{'SEND' if sends else 'RECV'}_{'FB'[backward]}", maker if sends else user
            written.append(program.operation(name, at, mb))
        elif letter == "=":
            copies = [at for at in range(len(program.placement)) if calls.tags[x] == f"stage {at % program.stages}"]
            own = [at for at in copies if program.placement[at] == rank and at not in summed]
            over = sum(1 << other for other in {program.placement[at] for at in copies})
            need(len(own) == 1 and y == over, where, "no sum of one stage, not over all of its ranks, or a second time")
            need(all(level.get((own[0], mb)) == 3 for mb in range(program.microbatches)), where, "it sums too early")
            summed.add(own[0])
            written.append(program.operation("REDUCE", own[0], None))
        if letter in "SRw":
            for settle, what, size in under_way.pop(step):
                settle(what)
                memory -= size
    need(set(level.values()) <= {3}, f"rank {rank}", "a backward is missing")
    return [len(level) + len(seen), written, after, max([0, *after]), most]


def named(call: Any) -> Any:
    """A call whose tag is text, as the certificate has it, where it was a number."""
    if type(call) is list and len(call) == 2 and type(call[1]) is list:
        return [call[0], [named(member) for member in call[1]]]
    return [*call[:2], str(call[2])] if type(call) is list and len(call) == 3 and type(call[2]) is int else call


def check_subject(subject: Any, head: Any, memory: Any, calls: Calls, operations: list[list[list[Any]]]) -> None:
    """Whether `subject`, a program or calls as `pipedsl expand` writes them, is what the certificate is about."""
    theirs = items(subject.get("ranks") if type(subject) is dict else None, "the program's ranks", list)
    mine: list[list[Any]] = [[] for _ in calls.entries]
    if "stages" in subject and head is not None:
        for part in head:
            same(subject.get(part), head[part], f"the program's {part}")
        if "memory" in subject:
            same(subject["memory"], {name: memory[name] for name in (*SIZES, "unit", "cap")}, "the program's memory")
        by_hand = '["SEND_' in canonical(theirs)
        mine = [[each for each in rank if by_hand or each[0] in (*LEVELS, "REDUCE")] for rank in operations]
    else:
        theirs = [[named(call) for call in rank] for rank in theirs]
        for rank, entries in enumerate(calls.entries):
            for letter, x, y, _, batched in entries:
                if letter in MESSAGES:
                    (mine[rank][-1][1] if batched else mine[rank]).append([MESSAGES[letter], x, calls.tags[y]])
                elif letter == "=":
                    mine[rank].append(["reduce", [r for r in range(len(mine)) if y >> r & 1], calls.tags[x]])
                elif letter not in LEVELS:
                    mine[rank].append(["wait", x] if letter == "w" else ["batch", []])
    same(theirs, mine, "the program's ranks")


def check(certificate: Any, subject: Any) -> str:
    """What the certificate proves of the subject. Raises Refused."""
    *title, digest, head, tags, ranks, orders, memory = fields(certificate, "the certificate", *KEYS)
    same(title, [FORMAT, VERSION], "format and version")
    body = canonical({name: value for name, value in certificate.items() if name != "sha256"})
    same(digest, hashlib.sha256(body.encode()).hexdigest(), "sha256")
    calls, safe = read_calls(ranks, tags), list[str]()
    for index, order in enumerate(items(orders, "orders", dict) or [{}]):
        where = f"orders[{index}]"
        claimed, _ = fields(order, where, "transports", "messages" if "messages" in order else "events")
        for name in items(claimed, where, str) or ["none"]:
            need(name in STREAMS and name not in safe, where, f"{name!a} is no transport, or claimed twice")
            safe.append(name)
        times = times_of(order, where, calls, claimed)
        for name in {*claimed} - {name for name in claimed if ALSO.get(name) in claimed}:
            replay(calls, name, times, f"{where}, {name}")
    operations = sum(letter in LEVELS for entries in calls.entries for letter, *_ in entries)
    need(head is not None or (memory is None and not operations), "program", "operations or memory, but no program")
    written = check_program(head, memory, calls, operations) if head is not None else []
    check_subject(subject, head, memory, calls, written)
    return f"safe on {', '.join(safe)}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python checker.py certificate.json program.json", file=sys.stderr)
        return 2
    try:
        print("accepted:", check(read(arguments[0]), read(arguments[1])))
    except (Refused, RecursionError, MemoryError) as error:
        print("refused:", error if isinstance(error, Refused) else "nested too deeply, or too large")
        return 1
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
