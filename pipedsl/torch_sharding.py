"""Whether UNSHARD, RESHARD and REDUCE_GRAD of a torch pipelining CSV stand where they make sense."""

from __future__ import annotations

import numpy as np

from pipedsl.diagnostics import Diagnostic, Label
from pipedsl.program import COMPUTE, Ints, Kind
from pipedsl.torch_cells import MOST_FINDINGS, Cells, Sharding, shown


def check_sharding(cells: Cells, placement: Ints) -> list[Diagnostic]:
    """UNSHARD, RESHARD and REDUCE_GRAD where they make no sense: what FSDP would refuse, or train wrongly on."""
    if not (cells.kind < 0).any():
        return []
    stages = len(placement)
    elsewhere = cells.stage >= stages
    elsewhere[~elsewhere] = placement[cells.stage[~elsewhere]] != cells.rank[~elsewhere]
    found = [
        Diagnostic("PD124", f"{cells.where(row)}: the rank does not hold stage {cells.stage[row]}", cells.spans[row])
        for row in np.flatnonzero(elsewhere & (cells.kind < 0))[:MOST_FINDINGS].tolist()
    ]
    if found:
        return found
    sharded = np.zeros(stages, bool)
    sharded[cells.stage[np.isin(cells.kind, (Sharding.UNSHARD, Sharding.RESHARD))]] = True
    rows = np.flatnonzero(np.isin(cells.kind, (*COMPUTE, *Sharding)))
    return _Shards(cells, sharded.tolist()).walk(rows.tolist())


class _Shards:
    """Goes through the operations of all ranks and knows what each stage's parameters and gradients are like.

    A stage without UNSHARD and RESHARD is taken not to be sharded.
    """

    def __init__(self, cells: Cells, sharded: list[bool]) -> None:
        self.cells = cells
        self.sharded = sharded
        self.whole: dict[int, int] = {}  # stage -> its UNSHARD that no RESHARD followed
        self.used: set[int] = set()  # stages with a computation since
        self.reduced: dict[int, int] = {}  # stage -> its REDUCE_GRAD
        self.found: list[Diagnostic] = []

    def walk(self, rows: list[int]) -> list[Diagnostic]:
        kinds, stages = self.cells.kind.tolist(), self.cells.stage.tolist()
        for row in rows:
            kind, stage = kinds[row], stages[row]
            if kind >= 0:
                if self.sharded[stage] and stage not in self.whole:
                    self._problem(row, "computes on parameters that are sharded", None)
                if stage in self.reduced and kind in (Kind.B, Kind.W):
                    self._problem(row, "adds to gradients that are reduced already", self.reduced[stage])
                self.used.add(stage)
            elif kind == Sharding.UNSHARD:
                if stage in self.whole:
                    self._problem(row, "unshards a second time", self.whole[stage])
                self.whole[stage] = row
                self.used.discard(stage)
            elif kind == Sharding.RESHARD:
                if stage not in self.whole:
                    self._problem(row, "reshards what is sharded", None)
                elif stage not in self.used:
                    self._problem(row, "reshards what was not used since", self.whole[stage])
                self.whole.pop(stage, None)
            else:
                if stage in self.reduced:
                    self._problem(row, "reduces the gradients a second time", self.reduced[stage])
                self.reduced[stage] = row
            if len(self.found) >= MOST_FINDINGS:
                return self.found
        for stage, row in self.whole.items():
            if stage not in self.used:
                self._problem(row, "unshards what is not used after", None)
        return self.found

    def _problem(self, row: int, what: str, other: int | None) -> None:
        span = self.cells.spans[row]
        labels = () if other is None else (Label(self.cells.spans[other], f"{self.cells.where(other)} is here"),)
        self.found.append(Diagnostic("PD124", f"{self.cells.where(row)}: {shown(span.text)} {what}", span, labels))
