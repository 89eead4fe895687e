"""The table of diagnostic codes, and the explanation of each.

An explanation is `explanations/PDxxx.md`: paragraphs, and two fenced texts. The one whose info string is `sched fails`,
with its parameters as `-D name=value`, ends in the code (PD602 when it is searched; `sched advised`, where the code is
advice on what is verified); the one with `sched verified` is the mended one. A code that no `.sched` text can have (a
file that cannot be read, a CSV, a Calls file) has neither; those of a CSV show `csv fails` and `csv verified`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

CODES: Mapping[str, str] = {
    "PD101": "unreadable text",
    "PD102": "unexpected character",
    "PD103": "syntax error",
    "PD104": "limit exceeded",
    "PD105": "unknown name",
    "PD106": "defined twice",
    "PD107": "wrong type",
    "PD108": "wrong number of arguments",
    "PD109": "division by zero",
    "PD110": "recursive function",
    "PD111": "parameter without a usable value",
    "PD112": "requirement not met",
    "PD113": "not supported yet",
    "PD114": "negative count, cost or size",
    "PD115": "missing item",
    "PD120": "cell is not an operation",
    "PD121": "microbatch missing or needless",
    "PD122": "stage on two ranks",
    "PD123": "rank without operations",
    "PD124": "sharding out of place",
    "PD201": "rank without one program",
    "PD202": "stage on no rank",
    "PD203": "counted and indexed forms mixed",
    "PD204": "no such chunk",
    "PD205": "no such microbatch",
    "PD206": "operation missing",
    "PD207": "operation twice",
    "PD208": "B together with I or W",
    "PD209": "order contradicts dependencies",
    "PD210": "communication incomplete or needless",
    "PD301": "deadlock",
    "PD302": "messages crossed",
    "PD303": "send or receive left over",
    "PD304": "batch too large",
    "PD305": "buffer used while a message is under way",
    "PD401": "memory over the cap",
    "PD501": "claim does not hold",
    "PD502": "claim cannot be decided",
    "PD601": "search problem refused",
    "PD602": "no order fits",
    "PD901": "a move would shorten it",
    "PD902": "memory held longer than needed",
    "PD903": "receive posted too early",
    "PD904": "few microbatches",
}
"""What each code says, in a few words."""


@dataclass(frozen=True)
class Example:
    """A schedule and the parameters it is read with."""

    text: str
    params: Mapping[str, int]


@dataclass(frozen=True)
class Explanation:
    """What `explain` shows. `text` is all of it, Markdown; the examples are in it too."""

    code: str
    title: str
    text: str
    failing: Example | None
    mended: Example | None


_FENCE = re.compile(r"^```sched (fails|advised|verified)((?: -D \w+=\d+)*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def explanation(code: str) -> Explanation:
    """The explanation of a code. Raises KeyError for one that does not exist."""
    from importlib.resources import files  # slow to load, and only needed here

    title = CODES[code]
    text = files("pipedsl").joinpath("explanations", f"{code}.md").read_text("utf-8")
    examples = {role: Example(body, _parameters(params)) for role, params, body in _FENCE.findall(text)}
    return Explanation(code, title, text, examples.get("fails") or examples.get("advised"), examples.get("verified"))


def _parameters(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"-D (\w+)=(\d+)", text)}
