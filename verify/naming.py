"""What a call is called, and where the text asks for it."""

from __future__ import annotations

from pipedsl.calls import CallKind, Calls
from pipedsl.diagnostics import Span
from pipedsl.program import Program


def span_of(program: Program | None, calls: Calls, row: int) -> Span | None:
    """Where the text asks for a call."""
    op = int(calls.op[row])
    return program.span_of(op) if program is not None and op >= 0 else None


def name(calls: Calls, row: int) -> str:
    """A call with its batch or request: `isend F0@1 to rank 1`, `wait 3 (irecv B0@0 from rank 1)`."""
    rows = calls.rows(int(calls.rank_of()[row]))
    if calls.kind[row] == CallKind.WAIT:
        issues = (CallKind.ISEND, CallKind.IRECV)
        part = slice(rows.start, rows.stop)
        for at in (calls.request[part] == calls.request[row]).nonzero()[0].tolist():
            if calls.kind[rows[at]] in issues:
                return f"wait {calls.request[row]} ({name(calls, rows[at])})"
    elif calls.batch[row] >= 0:
        members = [at for at in range(row, rows.stop) if calls.batch[at] == calls.batch[row]]
        shown = ", ".join(calls.label(at) for at in members[:4]) + (", ..." if len(members) > 4 else "")
        return f"batch [{shown}]"
    return calls.label(row)
