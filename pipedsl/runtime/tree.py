"""Nested structures of tensors: taken apart for sending, put together again, split into microbatches."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

# A structure is a nested tuple that `repr` and `literal_eval` carry over: ("tensor",), ("constant", value),
# ("float", hex), ("tuple" | "list", children) or ("dict", keys, children).
Structure = tuple[Any, ...]


_TENSOR: Structure = ("tensor",)
_CONSTANTS = (type(None), bool, int, str)  # no subclass, such as an enum's, which `repr` does not carry over
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # the types of tensors that are what lies in their memory


def flatten(value: Any, *what: Any) -> tuple[Structure, list[torch.Tensor]]:
    """The structure of `value` and its tensors, in order. TypeError, naming `what`, for anything else inside."""
    if isinstance(value, torch.Tensor):
        return _TENSOR, [value]
    leaves: list[torch.Tensor] = []
    return _take_apart(value, leaves, "".join(map(str, what))), leaves


def flatten_output(value: Any, *what: Any) -> tuple[Structure, list[torch.Tensor]]:
    """The same of what a stage returned for the next one; TypeError for tensors that cannot be sent, too.

    They are refused as well where the next stage is on the same rank: what works is not to depend on the schedule.
    """
    structure, leaves = flatten(value, *what)
    for leaf in leaves:
        if problem := _not_to_send(leaf):
            raise TypeError(f"{''.join(map(str, what))} has {problem}")
    return structure, leaves


def _not_to_send(x: torch.Tensor) -> str:
    """What kind of tensor this is, where its shape and its elements are not all that it is; else empty."""
    known = type(x) in _PLAIN
    if not known and hasattr(x, "device_mesh"):
        return "a DTensor; stages exchange whole tensors (`.full_tensor()`, `.to_local()`)"
    if x.is_nested:
        return (
            "a nested tensor; stages exchange tensors of one shape (`.to_padded_tensor()`, `.values()`, `.offsets()`)"
        )
    if x.layout is not torch.strided:
        return f"a tensor of layout {x.layout}; stages exchange dense ones (`.to_dense()`)"
    if x.is_quantized:
        return f"a quantized tensor ({x.dtype}); stages exchange plain ones (`.dequantize()`, `.int_repr()`)"
    return "a tensor whose memory has been freed" if known and _is_freed(x) else ""


def _is_freed(x: torch.Tensor) -> bool:
    """Whether the storage ends before the last of the tensor's bytes, as that of parameters that have been sharded."""
    offset, there = int(x.storage_offset()), x.untyped_storage().nbytes()
    if x.is_contiguous():
        return bool(x.nbytes) and there < offset * x.itemsize + x.nbytes
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return there < (offset + last + 1) * x.itemsize


def plain(x: torch.Tensor) -> torch.Tensor:
    """The tensor as a message's bytes: transports send no lazy conjugates or negatives, and no strides.

    A copy where it is of a subclass, whose own memory, if any, need not be what it stands for, or sparse.
    """
    if type(x) in _PLAIN and x.layout is torch.strided:
        return (
            x
            if x.is_contiguous() and not x.is_neg() and not x.is_conj()
            else x.resolve_conj().resolve_neg().contiguous()
        )
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x if x.layout is torch.strided else x.to_dense())


def _take_apart(value: Any, leaves: list[torch.Tensor], what: str) -> Structure:
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return _TENSOR
    if type(value) in _CONSTANTS:
        return ("constant", value)
    if isinstance(value, float):
        return ("float", value.hex())  # exact, and equal to itself when it is not a number
    if isinstance(value, dict):
        if not all(type(key) in _CONSTANTS for key in value):
            raise TypeError(f"{what} has a dict whose keys are not text or integers")
        return ("dict", tuple(value), tuple(_take_apart(item, leaves, what) for item in value.values()))
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return (kind, tuple(_take_apart(item, leaves, what) for item in value))
    raise TypeError(
        f"{what} has a {type(value).__name__}; stages exchange tensors and None, numbers and text, "
        "in tuples, lists and dicts"
    )


def unflatten(structure: Structure, leaves: Sequence[torch.Tensor]) -> Any:
    """The value that `flatten` took apart, with `leaves` as its tensors."""
    return leaves[0] if structure == _TENSOR else _put_together(structure, iter(leaves))


def _put_together(structure: Structure, leaves: Iterator[torch.Tensor]) -> Any:
    kind = structure[0]
    if kind == "tensor":
        return next(leaves)
    if kind == "constant":
        return structure[1]
    if kind == "float":
        return float.fromhex(structure[1])
    items = [_put_together(child, leaves) for child in structure[-1]]
    if kind == "dict":
        return dict(zip(structure[1], items, strict=True))
    return tuple(items) if kind == "tuple" else items


@dataclass(frozen=True)
class Layout:
    """What crosses a stage boundary: the structure and, per tensor, (shape, dtype, needs a gradient).

    `rows`: of a microbatch, in the batch that the first stage was given. `shared`: the tensors that share memory with
    another one, by number; those of a later microbatch may be others.
    """

    structure: Structure
    tensors: tuple[tuple[tuple[int, ...], str, bool], ...]
    rows: int
    shared: tuple[int, ...]

    @staticmethod
    def of(structure: Structure, leaves: Sequence[torch.Tensor], rows: int, shared: Sequence[int]) -> Layout:
        tensors = tuple((tuple(x.shape), str(x.dtype).removeprefix("torch."), x.requires_grad) for x in leaves)
        return Layout(structure, tensors, rows, tuple(shared))

    @staticmethod
    def decode(data: bytes) -> Layout:
        return Layout(*ast.literal_eval(data.decode()))

    def encode(self) -> bytes:
        return repr((self.structure, self.tensors, self.rows, self.shared)).encode()

    @cached_property
    def needs(self) -> list[bool]:
        """Which tensors need a gradient."""
        return [needed for _, _, needed in self.tensors]

    @cached_property
    def kinds(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of every tensor."""
        return [(shape, getattr(torch, dtype)) for shape, dtype, _ in self.tensors]

    @cached_property
    def gradient_kinds(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """The same of what is sent for the gradients of those that need one.

        For one without elements that is an element all the same, which can say that there is none.
        """
        kinds = [kind for kind, needed in zip(self.kinds, self.needs, strict=True) if needed]
        return [((1,), dtype) if 0 in shape else (shape, dtype) for shape, dtype in kinds]

    @cached_property
    def has_bare(self) -> bool:
        """Whether a tensor without elements needs a gradient."""
        return any(needed and 0 in shape for shape, _, needed in self.tensors)

    def restored(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What was sent for the gradients, in the shapes of these."""
        shapes = [shape for shape, _, needed in self.tensors if needed]
        return [
            x.new_empty(shape) if x is not None and 0 in shape else x
            for x, shape in zip(gradients, shapes, strict=True)
        ]

    def fits(self, structure: Structure, leaves: Sequence[torch.Tensor], rows: int) -> bool:
        """Whether this is the layout of that."""
        if rows != self.rows or structure != self.structure:
            return False
        for x, (shape, dtype), needed in zip(leaves, self.kinds, self.needs, strict=True):
            if x.shape != shape or x.dtype is not dtype or x.requires_grad is not needed:
                return False
        return True

    def __str__(self) -> str:
        tensors = ", ".join(
            f"{dtype} {list(shape)}{' with gradient' if needs else ''}" for shape, dtype, needs in self.tensors
        )
        return f"({tensors})" if self.structure == ("tensor",) else f"({tensors}) as {self.structure}"


def split(value: Any, parts: int, what: str) -> tuple[list[Any], int]:
    """`value` (a tensor or a nested structure of them) in `parts` equal parts along dimension 0; the rows of each.

    ValueError, naming `what` and the sizes, where that cannot be.
    """
    structure, leaves = flatten(value, what)
    if not leaves:
        raise ValueError(f"{what} has no tensor to split into microbatches")
    sizes = [leaf.shape[0] if leaf.dim() else None for leaf in leaves]
    if len(set(sizes)) != 1 or sizes[0] is None:
        raise ValueError(f"{what} has tensors of shapes {[list(x.shape) for x in leaves]}; dimension 0 must agree")
    rows = sizes[0]
    if rows == 0 or rows % parts:
        raise ValueError(f"{what} has {rows} rows, which m = {parts} microbatches cannot share equally")
    each = rows // parts
    columns = [
        # One call makes all views, but those of a tensor with gradient could not be written to. `data` of the others:
        # to write to one is not to have written to all, which backwards would take for a mistake.
        [leaf.narrow(0, i * each, each) for i in range(parts)]
        if leaf.requires_grad
        else [part.data for part in leaf.chunk(parts)]
        for leaf in leaves
    ]
    return [unflatten(structure, row) for row in zip(*columns, strict=True)], each
