"""A sweep as a picture: what is found for each cap, and the lower bound under it."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from pipedsl.library import UsageError

if TYPE_CHECKING:
    from pipedsl.sweeping import SweepPoint


def check_drawable() -> None:
    """Raise UsageError where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError("drawing needs matplotlib: pip install 'pipedsl[plot]'") from None


def draw_sweep(name: str, points: Sequence[SweepPoint], form: str) -> bytes:
    """The picture as a file of format `form`. Raises UsageError where matplotlib is not installed."""
    check_drawable()
    import matplotlib
    from matplotlib.figure import Figure

    # Salt and metadata are what matplotlib would otherwise make up anew in every file.
    settings: Any = {"svg.hashsalt": "pipedsl", "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    solved = [(float(point.value), point.result) for point in points if point.result is not None]
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.add_subplot()
        at = [value for value, _ in solved]
        axes.plot(at, [float(result.value) for _, result in solved], marker="o", label="found")
        axes.plot(at, [float(result.bound) for _, result in solved], linestyle="--", label="lower bound")
        proved = [(value, float(result.value)) for value, result in solved if result.optimal]
        if proved:
            xs, ys = zip(*proved, strict=True)
            axes.scatter(xs, ys, marker="s", zorder=3, label="proved to be the smallest")
        for point in points:
            if point.refusal is not None:
                axes.axvline(float(point.value), color="#cccccc", linewidth=6, zorder=0)
        axes.set_xlabel(name)
        axes.set_ylabel(solved[0][1].objective if solved else "nothing found")
        if solved:
            axes.legend()
        buffer = BytesIO()
        metadata: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
        figure.savefig(buffer, format=form, metadata=metadata, dpi=150)
    return buffer.getvalue()
