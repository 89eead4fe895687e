"""Tensors that stages return: what is more than a shape and elements in memory is refused by name or made plain."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import pytest
import torch

from pipedsl.runtime.tree import flatten_output, plain
from tests.support.wrapped import Wrapped


def freed(size: int, part: slice = slice(None)) -> torch.Tensor:
    """Part of 400 bytes, of which all but the first are given back, as sharding wrappers do."""
    x = torch.ones(100)[part]
    x.untyped_storage().resize_(size)
    return x


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "a nested tensor"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
    (lambda: torch.eye(3).to_sparse(), r"a tensor of layout torch\.sparse_coo"),
    (lambda: torch.eye(3).to_sparse_csr(), r"a tensor of layout torch\.sparse_csr"),
    (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), r"a quantized tensor \(torch\.qint8\)"),
    (lambda: freed(0), "a tensor whose memory has been freed"),
    (lambda: freed(0, slice(50, None)), "a tensor whose memory has been freed"),
    (lambda: freed(0, slice(None, None, 2)), "a tensor whose memory has been freed"),
    (lambda: freed(396), "a tensor whose memory has been freed"),
    (lambda: freed(396, slice(3, None, 12)), "a tensor whose memory has been freed"),
]


@pytest.mark.parametrize(("make", "kind"), REFUSED)
@pytest.mark.parametrize("among", [lambda x: x, lambda x: (torch.ones(2), {"x": x})], ids=["bare", "nested"])
@pytest.mark.filterwarnings("ignore")
def test_kinds_of_tensors_that_cannot_be_sent_are_named(
    make: Callable[[], Any], kind: str, among: Callable[[Any], Any]
) -> None:
    with pytest.raises(TypeError, match=f"the output of stage 3 has {kind}"):
        flatten_output(among(make()), "the output of stage ", 3)


class Mode(IntEnum):
    FAST = 1


class Name(StrEnum):
    FIRST = "a"


@pytest.mark.parametrize("value", [Mode.FAST, Name.FIRST, np.str_("a"), object()], ids=lambda x: type(x).__name__)
def test_what_only_looks_like_a_number_or_text_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=f"has a {type(value).__name__}; stages exchange"):
        flatten_output((torch.ones(2), value), "the output")
    with pytest.raises(TypeError, match="has a dict whose keys are not text or integers"):
        flatten_output({value: torch.ones(2)}, "the output")


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(3),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(1).expand(1000),
        torch.ones(10, 10)[2:, ::3],
        torch.ones(10, 10)[10:],
        torch.empty(0),
        torch.ones(3, dtype=torch.complex64).conj(),
        freed(400, slice(None, None, 3)),
        freed(396, slice(2, None, 12)),
        torch.ones(2, 3).t(),
        Wrapped(torch.ones(3)),
    ],
)
def test_others_are_not(x: torch.Tensor) -> None:
    assert flatten_output(x, "it")[1][0] is x
    sent = plain(x)
    assert type(sent) in (torch.Tensor, torch.nn.Parameter)
    assert sent.is_contiguous()
    assert not sent.is_conj()
    assert not sent.numel() or sent.data_ptr()
    assert sent.tolist() == (x.inner if isinstance(x, Wrapped) else x).tolist()


def test_what_lies_plain_in_memory_is_not_copied() -> None:
    x = torch.ones(3)
    assert plain(x) is x


@pytest.mark.filterwarnings("ignore")
def test_gradients_that_are_sparse_are_sent_whole() -> None:
    for x in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
        sent = plain(x)
        assert sent.layout is torch.strided
        assert torch.equal(sent, torch.eye(3))
