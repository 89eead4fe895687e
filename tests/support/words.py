"""Programs by hand: `word_program([["F0", "F1", "B0"], ...])`, one list of operations a rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from pipedsl.diagnostics import Source, Span
from pipedsl.program import Costs, Kind, Memory, Program

_OPERATION = re.compile(r"(?P<kind>[A-Z_]*[A-Z])(?P<microbatch>\d*)(@(?P<stage>\d+))?(/(?P<replica>\d+))?")


def costs(stages: int, f: object = 1, i: object = 1, w: object = 1, b: object = None, send: object = 0) -> Costs:
    """The same costs for every stage; `b` is `i + w` unless given."""
    f, i, w, send = (Fraction(str(value)) for value in (f, i, w, send))
    whole = i + w if b is None else Fraction(str(b))
    return Costs(*((value,) * stages for value in (f, whole, i, w, send)))


def memory(
    stages: int, ranks: int, activation: object = 1, held: object = None, weights: object = 0, output: object = 0,
    cap: object = None,
) -> Memory:  # fmt: skip
    whole = Fraction(str(activation))
    parts = (whole, whole if held is None else Fraction(str(held)), *(Fraction(str(weights)),) * 2)
    limit = None if cap is None else Fraction(str(cap))
    return Memory(*((value,) * stages for value in (*parts, Fraction(str(output)))), cap=(limit,) * ranks)


def word_program(
    words: Sequence[Sequence[str]],
    placement: Sequence[int] | None = None,
    microbatches: int | None = None,
    cost: Costs | None = None,
    sizes: Memory | None = None,
    params: Mapping[str, int] | None = None,
) -> Program:
    """`F0` is microbatch 0 of the rank's only stage, `F0@2` of stage 2, `F0@2/1` of replica 1; `REDUCE@2`."""
    ranks = len(words)
    places = np.array([placement if placement is not None else range(ranks)], np.int32)
    stages = places.shape[1]
    text, spans, rows = "", [], []
    for rank, word in enumerate(words):
        for operation in word:
            match = _OPERATION.fullmatch(operation)
            assert match, operation
            own = np.flatnonzero(places[0] == rank)
            stage = int(match["stage"]) if match["stage"] else int(own[0])
            rows.append((Kind[match["kind"]], stage, int(match["microbatch"] or -1), int(match["replica"] or 0)))
            spans.append((len(text), len(text) + len(operation)))
            text += operation + " "
        text += "\n"
    source = Source("by hand", text)
    columns = np.array(rows, np.int64).reshape(-1, 4)
    m = microbatches if microbatches is not None else int(columns[:, 2].max(initial=0)) + 1
    return Program(
        name="by_hand",
        params=params or {"p": ranks, "m": m},
        ranks=ranks,
        stages=stages,
        microbatches=m,
        placement=places,
        offsets=np.concatenate(([0], np.cumsum([len(word) for word in words]))).astype(np.int64),
        kind=columns[:, 0].astype(np.int8),
        stage=columns[:, 1].astype(np.int32),
        microbatch=columns[:, 2].astype(np.int32),
        replica=columns[:, 3].astype(np.int8),
        span=np.arange(len(rows), dtype=np.int32),
        spans=tuple(Span(source, start, end) for start, end in spans),
        costs=cost or costs(stages),
        memory=sizes or memory(stages, ranks),
        header_span=Span(source, 0, 1),
        rank_spans=(None,) * ranks,
    )


def gpipe(p: int, m: int) -> list[list[str]]:
    return [[f"F{i}" for i in range(m)] + [f"B{i}" for i in range(m)] for _ in range(p)]


def one_f_one_b(p: int, m: int) -> list[list[str]]:
    words = []
    for rank in range(p):
        warmup = min(p - 1 - rank, m)
        word = [f"F{i}" for i in range(warmup)]
        for i in range(m - warmup):
            word += [f"F{i + warmup}", f"B{i}"]
        words.append(word + [f"B{i}" for i in range(m - warmup, m)])
    return words


def counted(word: str) -> list[str]:
    """Operations without an index take the next microbatch of their kind (and chunk): `counted("F F@1 B")`."""
    seen: dict[str, int] = {}
    indexed = []
    for operation in word.split():
        kind, at, chunk = operation.partition("@")
        indexed.append(f"{kind}{seen.get(operation, 0)}{at}{chunk}")
        seen[operation] = seen.get(operation, 0) + 1
    return indexed


def zb_h1(p: int, m: int) -> list[list[str]]:
    return [
        counted(
            "F " * (p - 1 - r) + "F I " * r + "F I W " * (m - p + 1) + "I W " * (p - 1 - r) + "W " * r,
        )
        for r in range(p)
    ]


def zb_h2(p: int, m: int) -> list[list[str]]:
    words = []
    for r in range(p):
        late = 2 * (p - 1 - r)
        words.append(
            counted("F " * late + "F I " * (2 * r) + "F I W " * (m - 2 * p + 2) + "I W " * late + "W " * (2 * r))
        )
    return words


def interleaved(p: int, m: int, v: int) -> list[list[str]]:
    """Interleaved 1F1B; stage s sits on rank s % p."""
    words = []
    for r in range(p):
        warmup, total = min(2 * (p - 1 - r) + (v - 1) * p, m * v), m * v
        word = [f"F@{k // p % v * p + r}" for k in range(warmup)]
        for k in range(total):
            if k < total - warmup:
                word.append(f"F@{(k + warmup) // p % v * p + r}")
            word.append(f"B@{(v - 1 - k // p % v) * p + r}")
        words.append(counted(" ".join(word)))
    return words
