"""Proofs for every m: a program whose words are repeated a number of times that grows with m (design section 5).

`prove` shows for all m = period * q + residue with q >= a start that the structure is complete and that no operation
waits in a cycle. With that every m of the class is safe on every transport: the recipe of `pipedsl.lower` lists the
messages of each two ranks in one global order that the dependencies agree with, whatever m is, and calls in such an
order cannot wait for each other on any transport, cold or warm; matched ends and waited requests are part of the
recipe. (`verify` checks that order for each single m; that it exists is all that depends on m.)
"""

from __future__ import annotations

from verify.forall.coverage import Uncovered, uncovered
from verify.forall.linear import Linear, NeedsPeriod, Threshold, TooLate
from verify.forall.peaks import activation_peaks, memory_peaks
from verify.forall.program import Operation, ParametricProgram, Segment
from verify.forall.times import Prover, Run

__all__ = [
    "Linear",
    "NeedsPeriod",
    "Operation",
    "ParametricProgram",
    "Prover",
    "Run",
    "Segment",
    "Threshold",
    "TooLate",
    "Uncovered",
    "activation_peaks",
    "memory_peaks",
    "uncovered",
]
