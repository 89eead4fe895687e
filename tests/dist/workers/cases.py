"""Run cases of `tests/dist/cases` on these ranks. Arguments: a folder of generated files, then the cases, in order."""

from __future__ import annotations

from tests.dist.cases import (
    alike,
    buffers,
    composing,
    copies,
    flowing,
    linked,
    losses,
    missing,
    random_numbers,
    saving,
    training,
)
from tests.support.job import work

if __name__ == "__main__":
    modules = (training, flowing, linked, random_numbers, composing, buffers, missing, losses, copies, alike, saving)
    work({name: case for module in modules for name, case in module.CASES.items()})
