"""Memory over time as the second panel of the picture: a row for each rank, stacked by what the memory is for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from pipedsl.occupancy import Part, constant_part
from pipedsl.program import Program
from pipedsl.render.figure import MOST_SHAPES, dress
from pipedsl.render.memory import MemoryOverTime, parts_over_time
from pipedsl.render.numbers import number, size
from pipedsl.simulate import Timeline

COLOURS = {
    Part.WEIGHTS: "#8c8c8c",
    Part.ACTIVATIONS: "#4c72b0",
    Part.HELD_BY_W: "#c44e52",
    Part.INPUTS: "#64b5cd",
    Part.SEND_BUFFERS: "#dd8452",
    Part.RECEIVE_BUFFERS: "#937860",
}
NAMES = {
    Part.WEIGHTS: "weights, gradients, optimizer",
    Part.ACTIVATIONS: "activations",
    Part.HELD_BY_W: "held for W",
    Part.INPUTS: "inputs",
    Part.SEND_BUFFERS: "send buffers",
    Part.RECEIVE_BUFFERS: "receive buffers",
}
FULL = 0.84  # of a row's height


def draw_memory(axes: Any, program: Program, timeline: Timeline, held: MemoryOverTime) -> None:
    """Fill the panel. A full row is the largest peak or cap of all ranks."""
    from matplotlib.patches import Patch

    caps = program.memory.cap
    top = max([Fraction(0), *held.used.peaks(), *(cap for cap in caps if cap is not None)])
    scale, unit = FULL / float(top or 1), float(timeline.unit)
    last = float(timeline.makespan)
    parts = parts_over_time(program, held)
    constant = constant_part(program)
    legend = []
    if any(constant):
        legend.append(Patch(facecolor=COLOURS[Part.WEIGHTS], label=NAMES[Part.WEIGHTS]))
    legend += [Patch(facecolor=COLOURS[part], label=NAMES[part]) for part in parts]
    for rank in range(program.ranks):
        times, _ = held.steps(rank)
        x = np.concatenate(([0.0], np.asarray(times, np.float64) * unit, [last]))
        floor = rank + FULL / 2
        level = np.full(len(x), float(constant[rank]))
        if constant[rank]:
            _fill(axes, x, floor, floor - scale * level, COLOURS[Part.WEIGHTS])
        for part, over_time in parts.items():
            _, values = over_time.steps(rank)
            sizes = np.asarray(values, np.float64) * float(over_time.used.unit)
            sizes = np.concatenate(([0.0], sizes, sizes[-1:] if len(sizes) else [0.0]))
            _fill(axes, x, floor - scale * level, floor - scale * (level + sizes), COLOURS[part])
            level = level + sizes
        cap = caps[rank]
        if cap is not None:
            axes.hlines(floor - scale * float(cap), 0, last, colors="black", linestyles="dashed", linewidth=0.7)
    dress(axes, program.ranks, last, legend)
    shown = size(top) if program.memory.in_bytes else number(top)
    title = f"memory; a full row is {shown}{', dashed: the cap' if any(cap is not None for cap in caps) else ''}"
    axes.set_title(title, parse_math=False, fontsize=9, loc="left", pad=4)


def _fill(axes: Any, x: Any, below: Any, above: Any, colour: str) -> None:
    area = axes.fill_between(x, below, above, step="post", facecolor=colour, linewidth=0)
    area.set_rasterized(len(x) > MOST_SHAPES)
