"""`pipedsl expand`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pipedsl.api import load, verify
from pipedsl.cli.checking import exit_status
from pipedsl.cli.common import (
    color_option,
    define_option,
    file_argument,
    finish,
    format_option,
    limit_options,
    print_diagnostics,
    profile_option,
    write,
)
from pipedsl.diagnostics import Limits
from pipedsl.expand import expand
from pipedsl.render.expansion import calls_json, calls_text, program_json, program_text
from pipedsl.render.style import Colour

if TYPE_CHECKING:
    from pipedsl.profile import Profile


@click.command("expand", short_help="Write out every rank's operations or calls.")
@file_argument
@define_option
@click.option("--calls", "lowered", is_flag=True, help="The calls, with their communication, instead.")
@profile_option
@format_option
@color_option
@limit_options
def command(
    file: str,
    params: dict[str, int],
    lowered: bool,
    profile: Profile | None,
    form: str,
    color: Colour,
    limits: Limits,
) -> None:
    """Write out every rank's operations, or with --calls the communication that runs them.

    Operations need not be complete or in a possible order to be written out; calls do. Neither is a proof: that is
    `verify`. docs/formats.md describes the forms.
    """
    schedule = load(file, limits)
    pieces: Iterator[str]
    if lowered:
        result = verify(schedule, params, transports=("buffered",), limits=limits, profile=profile)
        if result.program is None or result.calls is None:
            print_diagnostics(result.diagnostics, color, err=True)
            finish(exit_status(result.report))
        pieces = calls_json(result.calls) if form == "json" else calls_text(result.calls, result.program)
    else:
        program = expand(schedule, params, limits)
        if profile is not None:  # says nothing of the operations, but must fit
            from pipedsl.profile import apply_profile

            program = apply_profile(profile, program)
        pieces = program_json(program) if form == "json" else program_text(program)
    for piece in pieces:
        write(piece)
