"""`pipedsl`: picks the command, and turns every way to fail into a message and an exit status.

0 fine · 1 rejected (findings) · 2 wrong usage or an internal error · 3 unknown.
"""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from pipedsl import __version__, check_verifier
from pipedsl.cli.interrupts import ignore_from_now_on, raise_again
from pipedsl.cli.output import forget_output
from pipedsl.cli.status import FAILED, INTERRUPTED, NO_READER, REJECTED
from pipedsl.diagnostics import DiagnosticError
from pipedsl.library import UsageError

COMMANDS = ("verify", "show", "compile", "expand", "search", "fmt", "list", "explain", "post-mortem")


class Commands(click.Group):
    """The group of all commands; importing one costs time only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"pipedsl.cli.{cmd_name.replace('-', '_')}").command
        raise_again()
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean `{close[0]}`?" if close and "Did you mean" not in error.message else ""
            raise click.UsageError(error.message + hint, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except (click.ClickException, click.exceptions.Exit):
            raise
        except BrokenPipeError:
            forget_output()
            ctx.exit(NO_READER)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except UsageError as error:
            _fail(ctx, str(error))
        except DiagnosticError as error:
            from pipedsl.cli.common import print_diagnostics

            print_diagnostics(error.diagnostics, err=True)
            ctx.exit(FAILED if any(each.code == "PD111" for each in error.diagnostics) else REJECTED)
        except MemoryError:
            _fail(ctx, "out of memory; a smaller p or m, or a lower --limit-operations, needs less")
        except OSError as error:
            forget_output()
            _fail(ctx, f"{error.filename or 'cannot write the output'}: {error.strerror or error}")
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            _fail(ctx, _internal(error))
        finally:
            ignore_from_now_on()


def _internal(error: Exception) -> str:
    if isinstance(error, ImportError):
        try:
            check_verifier()
        except ImportError as shadowed:
            return str(shadowed)
    what = str(error).split("\n")[0]
    return (
        f"internal error: {type(error).__name__}: {what}\n"
        f"This is a fault of pipedsl {__version__}, not of the file. Please report it with the command, the file and\n"
        "what `pipedsl --debug COMMAND ...` prints."
    )


def _fail(ctx: click.Context, message: str) -> NoReturn:
    from pipedsl.render.style import visible

    for number, text in enumerate(message.split("\n")):
        click.echo(f"{'' if number else 'error: '}{visible(text)}", err=True)
    ctx.exit(FAILED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pipedsl")
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
def cli(debug: bool) -> None:
    """Pipeline-parallel training schedules as text: proved, and compiled to torch.distributed.

    FILE is a path, `-` for standard input, or the name of a shipped schedule (see `pipedsl list`).

    Exit status: 0 fine, 1 rejected, 2 wrong usage or internal error, 3 unknown.
    """


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Source excerpts hold any character; an output that has no sign for one shows its number.
            stream.reconfigure(errors="backslashreplace")
    cli()
