"""Random numbers that do not depend on where and when a microbatch is computed, but on seed, stage and microbatch."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def cell_seed(seed: int, stage: int, microbatch: int) -> int:
    """What torch's generators are seeded with: the first 63 bits of the SHA-256 of these three numbers, as text."""
    text = f"{seed} {stage} {microbatch}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextlib.contextmanager
def seeded(seed: int, stage: int, microbatch: int) -> Iterator[None]:
    """While inside, torch draws what it draws in `pipe.step(..., seed=seed)` for this microbatch in this stage.

    For the one process that a pipeline is compared with: call stage and, inside of the last one's, loss_fn. Afterwards
    the generators are as they were before. They are the processor's and, once CUDA is used, the current GPU's.
    """
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    before = [each.get_state() for each in generators]
    value = cell_seed(seed, stage, microbatch)
    try:
        for each in generators:
            each.manual_seed(value)
        yield
    finally:
        for each, state in zip(generators, before, strict=True):
            each.set_state(state)
