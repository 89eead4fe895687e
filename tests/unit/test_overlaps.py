"""Which tensors share memory, against the addresses of every element."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from pipedsl.runtime.overlaps import overlapping


def addresses(x: torch.Tensor) -> set[int]:
    """Of every byte, by counting."""
    found: set[int] = set()
    for place in itertools.product(*map(range, x.shape)):
        first = x.data_ptr() + x.itemsize * sum(i * step for i, step in zip(place, x.stride(), strict=True))
        found.update(range(first, first + x.itemsize))
    return found


def shared(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    places = [addresses(x) for x in tensors]
    return tuple(i for i, each in enumerate(places) if any(each & other for j, other in enumerate(places) if j != i))


def found(tensors: list[torch.Tensor]) -> tuple[int, ...]:
    return overlapping(tensors, [id(x) for x in tensors])


def sliced(base: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """A box of it, with its dimensions in another order."""
    x = base
    for dim, size in enumerate(base.shape):
        begin = draw.randrange(size)
        x = x.narrow(dim, begin, draw.randint(1, size - begin))
    order = list(range(x.dim()))
    draw.shuffle(order)
    return x.permute(order)


@pytest.mark.parametrize("seed", range(8))
def test_slices_of_one_tensor(seed: int) -> None:
    """To the byte, whatever else is among them."""
    draw = random.Random(seed)
    alone = meeting = 0
    for _ in range(150):
        base = torch.zeros(
            [draw.randint(1, 5) for _ in range(draw.randint(1, 4))], dtype=draw.choice([torch.int16, torch.float64])
        )
        tensors = [sliced(base, draw) for _ in range(draw.randint(2, 3))] + [torch.zeros(3)]
        expected = shared(tensors)
        assert found(tensors) == expected, [(x.shape, x.stride(), x.storage_offset()) for x in tensors]
        meeting += bool(expected)
        alone += not expected
    assert alone > 10
    assert meeting > 10


def test_views_of_any_strides_that_meet_are_among_those_found() -> None:
    draw = random.Random(1)
    base = torch.zeros(60, dtype=torch.int16)
    missed = more = 0
    for _ in range(2000):
        tensors = []
        for _ in range(2):
            shape = [
                draw.randint(0, 3) if draw.random() < 0.1 else draw.randint(1, 3) for _ in range(draw.randint(0, 3))
            ]
            strides = [draw.randint(0, 8) for _ in shape]
            tensors.append(base.as_strided(shape, strides, draw.randint(0, 11)))
        expected, ours = shared(tensors), found(tensors)
        missed += not set(expected) <= set(ours)
        more += ours != expected
    assert missed == 0
    assert more < 500  # most are told apart


def test_usual_outputs() -> None:
    y = torch.zeros(2, 3, 12)
    assert found(list(y.chunk(3, dim=-1))) == ()
    assert found(list(y.unbind(1))) == ()
    assert found([y[..., ::2], y[..., 1::2]]) == ()
    assert found([y[:1], y[1:], torch.zeros(5)]) == ()
    assert found([y, torch.zeros(5), y[:, :, :4]]) == (0, 2)
    assert found([y, y.view(torch.int32)]) == (0, 1)
    assert found([y, y.clone(), y.detach()]) == (0, 2)
    assert found([torch.zeros(5), y, y]) == (1, 2)
    assert found([y.expand(4, 2, 3, 12), y.clone()]) == ()
    assert found([y[:0], y]) == ()
    assert found([y]) == found([]) == ()
    assert overlapping([y, torch.zeros(2), torch.zeros(2)], [1, 2, 2]) == (1, 2)
