"""Trying a help: calls, changed or not, on a transport of which something more is assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from pipedsl.calls import Calls
from verify.cycle import Hop, shortest_cycle
from verify.deadlock import hangs, mirrored, stuck_events
from verify.events import NOTHING, Assumed, Event, EventGraph, event_graph
from verify.mend import Mended, mend_calls
from verify.messages import crossed
from verify.transports import Communicators, Transport

BUDGET = 150_000
"""Calls looked at over all trials of one search; about two seconds."""
_OVERHEAD = 50  # what a trial costs however few calls there are, in calls


@dataclass(frozen=True, eq=False)
class Help:
    """What is tried. `kind`, `details` and `text` as in `Remedy`; empty for no help at all."""

    calls: Calls
    assumed: Assumed = NOTHING
    per_direction: bool = False
    kind: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    text: str = ""

    def also(self, kind: str, key: str, values: object, text: str) -> Help:
        """The help, saying that one more thing is done."""
        return replace(
            self,
            kind=f"{self.kind} + {kind}" if self.kind else kind,
            details={**self.details, key: values},
            text=f"{self.text}; and {text}" if self.text else text,
        )


class Exhausted(Exception):
    """The search has looked at as many calls as it may."""


@dataclass(frozen=True, eq=False)
class Trial:
    """How calls fare. `safe`: they end, and no message is left over or crossed."""

    graph: EventGraph
    stuck: NDArray[Any]
    safe: bool

    @property
    def badness(self) -> int:
        """How many events never happen; 0 only if safe."""
        return 0 if self.safe else 1 + int(self.stuck.sum())

    def cycle(self) -> list[Hop]:
        return shortest_cycle(self.graph, self.stuck)

    def rows_on_cycle(self) -> list[int]:
        """The first rows of the steps on a shortest cycle, in its order; without one, those that lack others."""
        graph, count = self.graph, len(self.graph.steps)
        steps = [hop.node % count for hop in self.cycle() if hop.node < count * Event.BARRIER]
        if not steps and graph.uses is not None:
            steps = [step for _, own in graph.uses.lacking for step in own]
        return list(dict.fromkeys(int(graph.steps.first[step]) for step in steps))


class Searcher:
    """Tries helps until its budget is spent. Deterministic: it counts work, not time."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.budget = self.left = budget
        self._mended: Mended | None = None

    @contextmanager
    def share(self, parts: int) -> Iterator[None]:
        """Within, at most one of `parts` parts of the budget is spent; more raises Exhausted."""
        kept = max(self.left - self.budget // parts, 0)
        self.left -= kept
        try:
            yield
        finally:
            self.left = max(self.left, 0) + kept

    def afford(self, calls: Calls) -> None:
        """Raises Exhausted if one trial of these calls would."""
        if len(calls) + _OVERHEAD > self.left:
            raise Exhausted

    def mended(self, calls: Calls) -> Calls | None:
        """What `mend_calls` makes of the calls that are searched; made once."""
        if self._mended is None:
            self._mended = mend_calls(calls)
        return self._mended.calls

    def safe(self, help_: Help, transport: Transport) -> bool:
        """Whether a help is enough; by its one global order if it has one, which costs next to nothing."""
        return mirrored(help_.calls) or self.trial(help_, transport).safe

    def trial(self, help_: Help, transport: Transport) -> Trial:
        """Raises Exhausted."""
        self.left -= len(help_.calls) + _OVERHEAD
        if self.left < 0:
            raise Exhausted
        if help_.per_direction:
            transport = replace(transport, communicators=Communicators.DIRECTION)
        graph = event_graph(help_.calls, transport, help_.assumed)
        stuck = stuck_events(graph)
        fine = not hangs(graph, stuck) and not len(graph.matching.left)
        return Trial(graph, stuck, fine and (transport.by_tag or not crossed(help_.calls, transport)))
