"""The evidence for how good an answer of a search is: for `verify/bound_checker.py`, and SMT-LIB for solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verify.search.evidence import bound_certificate
from verify.search.model import model_of
from verify.search.smtlib import narrowed_text

if TYPE_CHECKING:
    from pipedsl.search_answer import SearchResult


@dataclass(frozen=True)
class SearchEvidence:
    """`certificate`: of the bound, for the small checker. Where the bound rests on a solver, `refutation`: the problem
    and an order below the bound in SMT-LIB, for any solver to refute; `narrowed`: the same with what follows from it,
    which is quicker to refute (None: there is nothing to add).
    """

    certificate: dict[str, Any]
    refutation: str | None
    narrowed: str | None


def search_evidence(result: SearchResult) -> SearchEvidence:
    """What shows that no order of the problem is below the bound. With `place ?` that is the placement's own problem.

    Raises ValueError where the text for solvers would be too large.
    """
    bound = int(result.bound / result.problem.time_unit)
    certificate, text = bound_certificate(result.problem, bound)
    narrowed = None if text is None else narrowed_text(model_of(result.problem), bound - 1)
    return SearchEvidence(certificate, text, narrowed)
