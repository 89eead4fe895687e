"""Proofs for every m: symbolic values and words (here), and the proof on them (`verify.forall`)."""

from __future__ import annotations

from pipedsl.parametric.classes import Bounds
from pipedsl.parametric.prove import ForAll, prove_for_all, prove_for_all_in

__all__ = ["Bounds", "ForAll", "prove_for_all", "prove_for_all_in"]
