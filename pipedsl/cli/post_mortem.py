"""`pipedsl post-mortem`: what the ranks of a failed step have left, in one place."""

from __future__ import annotations

import click

from pipedsl.cli.common import print_lines
from pipedsl.post_mortem import read_states, summary
from pipedsl.render.style import line, visible


@click.command("post-mortem", short_help="Put the state files of a failed step together.")
@click.argument("folder", metavar="DIR")
def command(folder: str) -> None:
    """Say where every rank of a failed step stood, and who waited for whom.

    DIR holds the state files that `Pipeline(..., post_mortem=DIR)` or PIPEDSL_POST_MORTEM=DIR has left; those of
    several runs are told apart, the last comes last.
    """
    runs, problems = read_states(folder)
    texts = [text for states in runs.values() for text in summary(states)]
    print_lines(line(visible(text)) for text in texts)
    print_lines((line(visible(problem)) for problem in problems), err=True)
