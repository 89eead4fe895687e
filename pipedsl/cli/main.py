"""`pipedsl`: picks the command, and turns every way to fail into a message and an exit status.

0 fine · 1 rejected (findings) · 2 wrong usage or an internal error · 3 unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from pipedsl import __version__, check_verifier
from pipedsl.cli.common import finish, print_diagnostics
from pipedsl.cli.interrupts import ignore_from_now_on, raise_again
from pipedsl.cli.output import forget_output, say
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

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _ends_told(lambda: False):  # --help and --version print here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _ends_told(lambda: bool(ctx.params.get("debug"))):
                result = super().invoke(ctx)
                if sys.stdout is not None:
                    sys.stdout.flush()
                return result
        finally:
            ignore_from_now_on()


@contextmanager
def _ends_told(debug: Callable[[], bool]) -> Iterator[None]:
    """Turn what is raised into a message and click's Exit; an internal error is let through where it is to be seen."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        say(error.show)
        finish(error.exit_code)
    except BrokenPipeError:
        forget_output()
        finish(NO_READER)
    except KeyboardInterrupt:
        finish(INTERRUPTED)
    except UsageError as error:
        _fail(str(error))
    except DiagnosticError as error:
        found = error.diagnostics
        say(lambda: print_diagnostics(found, err=True))
        finish(FAILED if any(each.code == "PD111" for each in found) else REJECTED)
    except MemoryError:
        _fail("out of memory; a smaller p or m, or a lower --limit-operations, needs less")
    except OSError as error:
        forget_output()
        _fail(f"{error.filename or 'cannot write the output'}: {error.strerror or error}")
    except Exception as error:
        if debug():
            raise
        _fail(_internal(error))


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


def _fail(message: str) -> NoReturn:
    from pipedsl.render.style import visible

    lines = "\n".join(map(visible, message.split("\n")))
    say(lambda: click.echo(f"error: {lines}", err=True))
    finish(FAILED)


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
