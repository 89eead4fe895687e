"""Run cases of `tests/dist/cases` on these ranks. Arguments: a folder of generated files, then the cases, in order."""

from __future__ import annotations

from tests.dist.cases import composing, flowing, saving, training
from tests.support.job import work

if __name__ == "__main__":
    work({**training.CASES, **flowing.CASES, **composing.CASES, **saving.CASES})
