"""Calls that are safe everywhere, made of ones that are not: the same messages in one global order.

The ranks are run as if every message were buffered, in turn, each as far as it gets. The order in which that run sends
the messages is the global order. On both ends a message is issued at its place in it: sends stay where they are among
their rank's own calls, receives move to the place of their send, which is before their wait. So both ends of every pair
of ranks list their messages alike, which is safe on every transport, cold and warm (`deadlock.mirrored` says why).

Kept: every send after what was before it on its rank, and every wait after its request and before what came after it.
Changed: receives are posted earlier or later, a `recv` may become an `irecv` with its wait, batches are taken apart,
requests that nobody waited for are waited for at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Diagnostic
from pipedsl.program import Program
from verify.buffers import check_buffers
from verify.deadlock import mirrored
from verify.lifetimes import check_lifetimes
from verify.matching import RECEIVES, SENDS, match
from verify.messages import check_requests, check_unwaited
from verify.reductions import meetings_of
from verify.script import Entry, Script, read_script, write_script
from verify.transports import BY_NAME


@dataclass(frozen=True, eq=False)
class Mended:
    """The mended calls, or why there are none."""

    calls: Calls | None
    reason: str | None = None


def mend_calls(calls: Calls, program: Program | None = None) -> Mended:
    """The same messages in one global order; proved safe on all transports. Linear, but for sorting."""
    scripts = read_script(calls)
    if scripts is None:
        return Mended(None, "a wait is for a request that was not made before it, or is made twice")
    if (calls.peer == calls.rank_of()).any():
        return Mended(None, "a rank sends to itself")
    matching = match(calls, BY_NAME["gloo"])
    if len(matching.left):
        row = int(matching.left[0])
        what = "received" if calls.kind[row] in SENDS else "sent"
        return Mended(None, f"rank {calls.rank_of()[row]}: the message of `{calls.label(row)}` is never {what}")
    meetings = meetings_of(calls)
    if lacking := [meeting.rows[0] for meeting in meetings if not meeting.complete]:
        where = f"rank {calls.rank_of()[lacking[0]]}: `{calls.label(lacking[0])}`"
        return Mended(None, f"{where} is with a rank that never comes to it")
    kinds = calls.kind.tolist()
    scripts = [_alone(script, kinds) for script in scripts]
    partner = np.full(len(calls), -1, np.int64)
    partner[matching.recv] = matching.send
    together = {row: meeting.rows for meeting in meetings for row in meeting.rows}
    run = _Run(scripts, partner.tolist(), together)
    if stuck := run.stands_at():
        where = ", ".join(f"rank {rank} at `{calls.label(entry.rows[0])}`" for rank, entry in stuck[:4])
        return Mended(None, f"even if every message is buffered the ranks wait for each other: {where}")
    found: list[Diagnostic] = []
    for late in (True, False):  # early where a buffer must be let go of before it is received into again
        mended = write_script(calls, [run.mirrored(rank, late) for rank in range(calls.ranks)])
        found = check_requests(mended, None) + check_unwaited(mended, None) + check_buffers(mended)
        if program is not None:
            found += check_lifetimes(program, mended)
        if not found and mirrored(mended):
            return Mended(mended)
    return Mended(None, found[0].message if found else "the two ends of some message have different places")


def _alone(script: Script, kinds: Sequence[int]) -> Script:
    """Every message as a call of its own, and a wait for each request at the end if there was none."""
    members: dict[int, tuple[int, ...]] = {}
    open_rows: dict[int, None] = {}
    alone: Script = []
    for entry in script:
        if entry.kind is CallKind.WAIT:
            for row in members[entry.waits]:
                open_rows.pop(row, None)
                alone.append(replace(entry, waits=row))
        elif entry.kind in (CallKind.ISEND, CallKind.IRECV):
            alone += [Entry(CallKind(kinds[row]), (row,)) for row in entry.rows]
            members.update(dict.fromkeys(entry.rows, entry.rows))
            open_rows.update(dict.fromkeys(entry.rows))
        else:
            alone.append(entry)
    return alone + [Entry(CallKind.WAIT, (row,), waits=row) for row in open_rows]


class _Run:
    """A run in which every message is buffered. `when`: the moment of each row's send or receive being issued.

    `together`: of the row of a reduction, the rows that it meets, itself among them.
    """

    def __init__(
        self, scripts: Sequence[Script], send_of: Sequence[int], together: Mapping[int, Sequence[int]]
    ) -> None:
        self.scripts = scripts
        self.send_of = send_of
        self.together = together
        self.when: dict[int, int] = {}
        self.moments: list[list[int]] = [[] for _ in scripts]  # of each rank's entries, as far as it got
        self._go()

    def _go(self) -> None:
        waiting: dict[int, int] = {}  # the send that a rank waits for -> the rank
        ready = deque(range(len(self.scripts)))
        receives = self._receives()
        come: dict[int, int] = {}  # the reductions that ranks stand at -> the rank
        now = 0
        while ready:
            rank = ready.popleft()
            script, moments = self.scripts[rank], self.moments[rank]
            while len(moments) < len(script):
                entry = script[len(moments)]
                row = entry.waits if entry.kind is CallKind.WAIT else entry.rows[0]
                if entry.kind is CallKind.RECV or (entry.kind is CallKind.WAIT and row in receives):
                    send = self.send_of[row]
                    if send not in self.when:
                        waiting[send] = rank
                        break
                if entry.kind is CallKind.REDUCE:
                    come[row] = rank
                    if any(other not in come for other in self.together[row]):
                        break
                    others = [come[other] for other in self.together[row] if other != row]
                    for other in others:
                        self.moments[other].append(now)
                    ready.extend(others)
                moments.append(now)
                if entry.kind in SENDS:
                    self.when[entry.rows[0]] = now
                    if (woken := waiting.pop(entry.rows[0], None)) is not None:
                        ready.append(woken)
                now += 1

    def _receives(self) -> set[int]:
        return {e.rows[0] for script in self.scripts for e in script if e.kind in RECEIVES}

    def stands_at(self) -> list[tuple[int, Entry]]:
        """The ranks that do not reach their end, and where they stand."""
        pairs = zip(self.scripts, self.moments, strict=True)
        return [(rank, script[len(at)]) for rank, (script, at) in enumerate(pairs) if len(at) < len(script)]

    def mirrored(self, rank: int, late: bool) -> Script:
        """A rank's entries, with its receives at the moment of their sends.

        `late`: waits right before the rank's next call that is neither a wait nor a receive, so that receives that are
        posted earlier than before are not held up; else where they were.
        """
        entries, moments = self.scripts[rank], self.moments[rank]
        placed: list[tuple[int, Entry]] = []
        following = 2 * max((row[-1] for row in self.moments if row), default=0) + 1
        for entry, moment in zip(reversed(entries), reversed(moments), strict=True):
            wait = following if late else 2 * moment
            if entry.kind is CallKind.WAIT:
                placed.append((wait, entry))
            elif entry.kind in RECEIVES:
                row = entry.rows[0]
                if entry.kind is CallKind.RECV:
                    placed.append((max(wait, 2 * moment), Entry(CallKind.WAIT, (row,), waits=row)))
                placed.append((2 * self.when[self.send_of[row]], Entry(CallKind.IRECV, (row,))))
            else:
                placed.append((2 * moment, entry))
                following = 2 * moment - 1
        placed.reverse()
        placed.sort(key=lambda pair: pair[0])
        script: Script = []
        blocking = {entry.rows[0] for entry in entries if entry.kind is CallKind.RECV}
        for place, entry in placed:
            if entry.kind is CallKind.WAIT and entry.waits in blocking and script[-1].rows == (entry.waits,):
                script[-1] = replace(script[-1], kind=CallKind.RECV)
            else:
                script.append(replace(entry, order=max(place, 0)))
        return script
