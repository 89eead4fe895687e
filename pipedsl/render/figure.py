"""The timeline as a picture (SVG, PNG, PDF). The same program gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from pipedsl.library import UsageError
from pipedsl.program import WORK, Ints, Kind, Program
from pipedsl.render.memory import MemoryOverTime
from pipedsl.simulate import Timeline

SUFFIXES = (".svg", ".png", ".pdf")
COLOURS = {Kind.F: "#4c72b0", Kind.B: "#55a868", Kind.I: "#64b5cd", Kind.W: "#c44e52", Kind.REDUCE: "#8172b3"}
NAMES = {Kind.F: "F forward", Kind.B: "B backward", Kind.I: "I backward of input", Kind.W: "W backward of weights"}
NAMES |= {Kind.REDUCE: "REDUCE"}

WIDTH, ROW, MOST_HEIGHT = 12.0, 0.32, 60.0  # inches
MOST_NUMBERS = 3_000  # texts in one picture
MOST_SHAPES = 20_000  # above this the operations are drawn as pixels


def check_suffix(path: str) -> str:
    """The format that `path` asks for by its suffix. Raises UsageError."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot draw {path}: its name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return suffix[1:]


def draw(
    program: Program,
    timeline: Timeline,
    heading: str,
    captions: Sequence[str],
    form: str,
    held: MemoryOverTime | None = None,
) -> bytes:
    """The picture as a file of format `form`, with `captions` as the lines under it.

    With `held`, memory over time is a second panel under the timeline.

    Raises UsageError where matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("drawing needs matplotlib: pip install 'pipedsl[plot]'") from None
    height = min(max(program.ranks, 2) * ROW, MOST_HEIGHT)
    top, gap, foot = 0.45, 0.62, 0.5 + 0.2 * len(captions)
    panel = 0.0 if held is None else height + gap
    total = top + height + panel + foot
    # Salt and metadata are what matplotlib would otherwise make up anew in every file.
    settings: Any = {"svg.hashsalt": "pipedsl", "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH, total))
        axes = figure.add_axes((0.06, (foot + panel) / total, 0.92, height / total))
        _draw_rows(axes, program, timeline)
        axes.set_title(heading, parse_math=False, fontsize=11, loc="left", pad=6)
        if held is not None:
            from pipedsl.render.memory_figure import draw_memory

            draw_memory(figure.add_axes((0.06, foot / total, 0.92, height / total)), program, timeline, held)
        for index, caption in enumerate(captions):
            y = (foot - 0.42 - 0.2 * index) / total
            figure.text(0.06, y, caption, parse_math=False, fontsize=9, va="top")
        stream = BytesIO()
        figure.savefig(stream, format=form, metadata=_metadata(form), dpi=150)
    return stream.getvalue()


def _metadata(form: str) -> dict[str, Any]:
    if form == "svg":
        return {"Creator": "pipedsl", "Date": None}
    if form == "pdf":
        return {"Creator": "pipedsl", "Producer": None, "CreationDate": None}
    return {"Software": "pipedsl"}


def _draw_rows(axes: Any, program: Program, timeline: Timeline) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    unit = float(timeline.unit)
    start = np.asarray(timeline.start, dtype=np.float64) * unit
    end = np.asarray(timeline.end, dtype=np.float64) * unit
    rank = program.rank_of().astype(np.float64)
    last = float(end.max()) if len(end) else 0.0
    legend = []
    for kind in WORK:
        rows = np.flatnonzero((program.kind == kind) & (end > start))
        if not len(rows):
            continue
        legend.append(Patch(facecolor=COLOURS[kind], label=NAMES[kind]))
        left, right, top, bottom = start[rows], end[rows], rank[rows] - 0.42, rank[rows] + 0.42
        corners: Any = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
        shades = _shades(COLOURS[kind], program, rows)
        points = WIDTH * 0.92 * 72 * float((right - left).min()) / last
        edge = "white" if points > 3 else "none"  # between narrower operations the edges would be all there is to see
        bars = PolyCollection(corners, facecolors=shades, edgecolors=edge, linewidths=0.3, snap=False)
        bars.set_rasterized(len(program) > MOST_SHAPES)
        axes.add_collection(bars)
    _write_numbers(axes, program, start, end, last)
    dress(axes, program.ranks, last, legend)


def dress(axes: Any, ranks: int, last: float, legend: Sequence[Any]) -> None:
    """A row for every rank, time from 0 to `last`, and the legend above at the right."""
    axes.set_xlim(0, last or 1)
    axes.set_ylim(ranks - 0.5, -0.5)
    ticks = range(0, ranks, -(-ranks // 64))
    axes.set_yticks(list(ticks), [f"rank {each}" for each in ticks], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if legend:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": len(legend)}
        axes.legend(handles=legend, fontsize=8, frameon=False, borderaxespad=0.2, **place)


def _shades(colour: str, program: Program, rows: Ints) -> Any:
    """Colours of the operations: the later a chunk among its rank's, the lighter."""
    from matplotlib.colors import to_rgb

    chunk = np.zeros(program.placement.shape, dtype=np.int64)
    held = [0] * program.ranks
    for place in np.ndindex(chunk.shape):
        rank = int(program.placement[place])
        chunk[place] = held[rank]
        held[rank] += 1
    chunks = max(held)
    lightness = 0.55 * chunk[program.replica[rows], program.stage[rows]] / chunks
    return lightness[:, None] + (1 - lightness[:, None]) * np.array(to_rgb(colour))


def _write_numbers(axes: Any, program: Program, start: Ints, end: Ints, last: float) -> None:
    """The number of the microbatch in every operation, counted through the replicas, where all of them fit."""
    rows = np.flatnonzero((program.kind <= Kind.W) & (end > start))
    if not len(rows) or len(rows) > MOST_NUMBERS:
        return
    digits = len(str(program.placement.shape[0] * program.microbatches - 1))
    points = WIDTH * 0.92 * 72 * float((end - start)[rows].min()) / last
    font = min(8.0, 1.4 * points / digits)
    if font < 3:
        return
    ranks = program.rank_of()
    for row in rows.tolist():
        middle = (start[row] + end[row]) / 2
        text = str(int(program.replica[row]) * program.microbatches + int(program.microbatch[row]))
        axes.text(
            middle, ranks[row], text, ha="center", va="center_baseline", fontsize=font, color="white", clip_on=True
        )
