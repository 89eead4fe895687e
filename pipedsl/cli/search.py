"""`pipedsl search`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipedsl.api import load
from pipedsl.cli.checking import exit_status
from pipedsl.cli.common import (
    cap_option,
    color_option,
    define_option,
    file_argument,
    finish,
    format_option,
    limit_options,
    print_diagnostics,
    print_json,
    print_lines,
    profile_option,
    transport_option,
    write,
)
from pipedsl.cli.output import keep
from pipedsl.cli.progress import Progress
from pipedsl.cli.status import FAILED, INTERRUPTED, OK, REJECTED, UNKNOWN
from pipedsl.diagnostics import DiagnosticError, Limits
from pipedsl.every_m import EveryM, every_m, never
from pipedsl.files import check_writable, write_atomically
from pipedsl.found_text import exact
from pipedsl.library import UsageError
from pipedsl.render.figure import SUFFIXES, check_suffix
from pipedsl.render.search import (
    refusal_document,
    search_document,
    search_lines,
    sweep_document,
    sweep_lines,
)
from pipedsl.render.style import Colour
from pipedsl.search_answer import SearchResult
from pipedsl.search_cache import user_folder
from pipedsl.search_runs import effort_of
from pipedsl.searching import NothingFound, search
from pipedsl.sweeping import SweepPoint, sweep
from verify.search.engines import NAMES

if TYPE_CHECKING:
    from pipedsl.profile import Profile
    from pipedsl.syntax import Schedule

MOST_POINTS = 1000
FOR_EVERY_M = 1 / 6
"""Of the budget, once more for orders that repeat where the answer's do not."""

_SWEEP = re.compile(r"(\w+)\s*=\s*(\d{1,9})\s*\.\.\s*(\d{1,9})(?:\s*step\s*(\d{1,9}))?")


def _sweep(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[str, range] | None:
    if text is None:
        return None
    match = _SWEEP.fullmatch(text.strip())
    step = int(match[4] or 1) if match else 0
    if match is None or step < 1 or int(match[3]) < int(match[2]):
        like = "cap=2..16 or cap=2..16 step 2, of whole numbers without units"
        raise click.BadParameter(f"{text!r} is not a range like {like}")
    values = range(int(match[2]), int(match[3]) + 1, step)
    if len(values) > MOST_POINTS:
        raise click.BadParameter(f"{text!r} has {len(values)} values, the most are {MOST_POINTS}")
    return match[1], values


def _finite(ctx: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not isfinite(value):
        raise click.BadParameter(f"{value} is not an amount")
    return value


@click.command("search", short_help="Find the best order that a schedule leaves open.")
@file_argument
@define_option
@click.option("-o", "output", metavar="PATH", help="The .sched to write, `-` for standard output; a sweep draws one.")
@cap_option
@click.option("--sweep", "values", metavar="NAME=A..B", callback=_sweep, help="Search for each value, as in cap=2..16.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    callback=_finite,
    metavar="SECONDS",
    help="Keep the best found by then.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, min_open=True),
    callback=_finite,
    metavar="WORK",
    help="How much work to spend, in units of about a second; unlike a timeout, the same on every machine. Default 60.",
)
@click.option(
    "--engine",
    type=click.Choice([*NAMES, "auto"]),
    default="z3",
    show_default=True,
    help="Who decides what bounds and heuristics leave open; `auto`: cpsat where it is installed, which is quicker.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Start of what is tried at random.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes to search with.")
@click.option("--no-cache", "fresh", is_flag=True, help="Neither look up earlier answers nor keep this one.")
@click.option(
    "--for-all",
    "for_all",
    type=click.Choice(["m"]),
    help="Write the answer with m as a parameter, where that is proved right for every m from some m on.",
)
@click.option(
    "--certificate",
    metavar="PATH",
    help="Write evidence that verify/checker.py accepts, and beside it that of the bound, for verify/bound_checker.py.",
)
@format_option
@profile_option
@transport_option
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    output: str | None,
    cap: Fraction | None,
    values: tuple[str, range] | None,
    timeout: float | None,
    budget: float | None,
    engine: str,
    seed: int,
    jobs: int,
    fresh: bool,
    for_all: str | None,
    certificate: str | None,
    form: str,
    profile: Profile | None,
    transports: tuple[str, ...],
    color: Colour,
    limits: Limits,
) -> None:
    """Find the order that is best, of all that `||` leaves open, within the caps on memory; it is verified.

    The answer says its value, the best lower bound, and so whether it is the smallest there is. Ctrl-C keeps the best
    so far. docs/search.md has more.

    Exit status: 0 found, 1 no order keeps to the caps, 2 wrong usage or an output that could not be written, 3 ended
    before there was an answer.
    """
    cache = None if fresh else user_folder()
    chosen = next((name for name in NAMES if name == engine), None)
    if output == "-" and form == "json":
        raise UsageError("-o - and --format json both want standard output; the JSON holds the .sched too")
    if values is not None:
        if certificate is not None or cap is not None or for_all is not None:
            raise UsageError("a sweep goes without --cap, --certificate and --for-all")
        if output is not None:
            from pipedsl.render.search_figure import check_drawable

            check_suffix(output)
            check_drawable()
    elif output is not None and Path(output).suffix.lower() in SUFFIXES:
        raise UsageError(f"{output} is a picture's name: a search writes a .sched, and a sweep draws")
    _check_outputs(output, certificate)
    news = Progress()
    points: list[SweepPoint] = []
    schedule: Schedule | None = None
    try:
        schedule = load(file, limits)
        if values is not None:
            points = sweep(
                schedule, params, *values, timeout=timeout, budget=budget, seed=seed, jobs=jobs, cache=cache,
                progress=news.listener(), transports=transports, limits=limits, profile=profile, engine=chosen,
            )  # fmt: skip
        else:
            result = search(
                schedule, params, cap=cap, timeout=timeout, budget=budget, seed=seed, jobs=jobs, cache=cache,
                progress=news.listener(), transports=transports, limits=limits, profile=profile, engine=chosen,
            )  # fmt: skip
    except NothingFound as error:
        news.clear()
        click.echo(f"nothing found: {error}", err=True)
        finish(UNKNOWN)
    except KeyboardInterrupt:
        news.clear()
        click.echo("nothing found: interrupted before there was an answer", err=True)
        finish(UNKNOWN)
    except DiagnosticError as error:
        news.clear()
        if form == "text":
            raise
        print_json(refusal_document(file if schedule is None else schedule.header.name, params, error.diagnostics))
        finish(FAILED if any(each.code == "PD111" for each in error.diagnostics) else REJECTED)
    finally:
        news.clear()
    if values is not None:
        with _interrupts_told("the curve was found"):
            _finish_sweep(values[0], points, output, form, color)
    every = None
    if for_all is not None:
        effort = effort_of(budget, timeout, seed, 1, None, None, chosen).part(FOR_EVERY_M)
        with suppress(KeyboardInterrupt):
            every = every_m(result, effort.budget)
        if every is None:
            why = f", as nothing is with {never(result)}" if never(result) else ""
            click.echo(f"not proved for other m{why}: what is written holds for this one alone", err=True)
    with _interrupts_told(f"{result.objective} {exact(result.value)} was found"):
        _finish(result, every, output, certificate, form, color)


@contextmanager
def _interrupts_told(found: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        missing = "what was to be written may be missing in part"
        click.echo(f"interrupted while the answer was written: {found}, and {missing}", err=True)
        finish(INTERRUPTED)


def _check_outputs(output: str | None, certificate: str | None) -> None:
    """Raise UsageError or OSError for what could not be written: better said before than after an hour."""
    paths = [] if output is None or output == "-" else [output]
    if certificate is not None:
        from pipedsl.cli.evidence import evidence_paths

        paths += evidence_paths(certificate)
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise UsageError(f"{output}: -o and --certificate would write the same file")
    for path in paths:
        given = Path(path)
        leads = Path(os.path.realpath(given)) if given.is_symlink() and not given.exists() else given
        if not leads.parent.is_dir():
            link = "" if leads is given else f", where {given} leads"
            raise UsageError(f"there is no folder {leads.parent} to write {leads.name} to{link}")
        check_writable(path)


def _finish(
    result: SearchResult,
    every: EveryM | None,
    output: str | None,
    certificate: str | None,
    form: str,
    color: Colour,
) -> None:
    # Of very many operations it takes as long as the answer did.
    text = "" if output is None and form == "text" else result.text if every is None else every.text
    where = "on standard output" if form == "text" else "in the JSON"
    whole = output in (None, "-") or _written(output, text, f"the answer is {where}")
    on_output = output == "-" or (not whole and form == "text")

    def report(err: bool) -> None:
        if form == "json":
            print_json({**search_document(result, every), "sched": text}, err)
        else:
            print_diagnostics(result.report.diagnostics, color, err)
            print_lines(search_lines(result, every), color, err)

    try:
        if on_output:
            whole &= keep(lambda err: write(text, err))
            report(err=True)
        else:
            whole &= keep(report)
    finally:  # written also where nobody reads the report to its end
        if certificate is not None:
            from pipedsl.cli.evidence import write_search_evidence

            for text in write_search_evidence(result, certificate):
                click.echo(text, err=True)
    finish(exit_status(result.report) if whole else FAILED)


def _written(path: str, content: str | bytes, instead: str) -> bool:
    """Whether it could be written; where not, what is there `instead` is said."""
    try:
        write_atomically(path, content)
    except OSError as error:
        click.echo(f"error: {path}: {error.strerror or error}; {instead}", err=True)
        return False
    return True


def _finish_sweep(name: str, points: list[SweepPoint], output: str | None, form: str, color: Colour) -> None:
    whole = True
    if output is not None:
        from pipedsl.render.search_figure import draw_sweep

        picture = draw_sweep(name, points, check_suffix(output))
        whole = _written(output, picture, "what it would have shown follows")

    def report(err: bool) -> None:
        if form == "json":
            print_json(sweep_document(name, points), err)
        else:
            print_lines(sweep_lines(name, points), color, err)

    if not keep(report) or not whole:
        finish(FAILED)
    if any(point.result is not None for point in points):
        finish(OK)
    finish(REJECTED if all(point.refusal is not None for point in points) else UNKNOWN)
