"""Run cases of `tests/dist/cases` on these ranks. Arguments: a folder of generated files, then the cases, in order."""

from __future__ import annotations

from tests.dist.cases import composing, flowing, random_numbers, saving, training
from tests.support.job import work

if __name__ == "__main__":
    work({**training.CASES, **flowing.CASES, **random_numbers.CASES, **composing.CASES, **saving.CASES})
