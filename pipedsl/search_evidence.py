"""The evidence for how good an answer of a search is: for `verify/bound_checker.py`, and SMT-LIB for solvers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from verify.search.evidence import bound_certificate
from verify.search.model import model_of
from verify.search.smtlib import narrowed_text

if TYPE_CHECKING:
    from pipedsl.search_answer import SearchResult


@dataclass(frozen=True)
class SearchEvidence:
    """`certificate`: for the small checker, of what it can be shown: `proved`, in the file's unit. Where the bound is
    more, `refutation`: the problem and an order below the bound in SMT-LIB, for any solver to refute (None: that would
    be too large); `narrowed`: the same with what follows from it, which is quicker to refute (None: nothing does).
    """

    certificate: dict[str, Any]
    proved: Fraction
    refutation: str | None
    narrowed: str | None


def search_evidence(result: SearchResult) -> SearchEvidence:
    """What shows that no order of the problem is below the bound; with `place ?` of the problem of its placement."""
    bound = int(result.bound / result.problem.time_unit)
    certificate, text = bound_certificate(result.problem, bound)
    narrowed = None if text is None else narrowed_text(model_of(result.problem), bound - 1)
    proved = Fraction(certificate["bound"], result.problem.time_unit.denominator)
    return SearchEvidence(certificate, proved, text, narrowed)
