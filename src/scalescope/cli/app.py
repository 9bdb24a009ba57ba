"""The command line: finds the verbs, turns errors into one line and an exit code."""

import errno
import importlib
import signal
import sys
import time
from typing import NoReturn

import click

from scalescope.cli import front_page
from scalescope.cli.help_pages import with_help_all
from scalescope.cli.streams import clean_output, code_after_output, keyboard_interrupts
from scalescope.errors import ExitCode, Interrupted, ScalescopeError
from scalescope.results.printable import printable
from scalescope.version import __version__

_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_SUCH_PLACE = (errno.ENAMETOOLONG, errno.ELOOP)  # of a path that was given
_LONGEST_NAME = 100


class Verbs(click.Group):
    """One module of `cli.verbs` for each verb, imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return front_page.verb_names()

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        return with_help_all(importlib.import_module(f"scalescope.cli.verbs.{name}").command)

    def get_help(self, ctx: click.Context) -> str:
        return front_page.help_text(front_page.terminal_columns())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from scalescope.catalog.setting import nearest

            known = self.list_commands(ctx)
            hint = nearest(args[0], known) or f"; known: {', '.join(known)}"
            raise click.UsageError(f"no such verb {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=Verbs,
    help=front_page.PURPOSE,
    epilog=front_page.EXIT_CODES,
    context_settings={"help_option_names": list(front_page.HELP_FLAGS)},
)
@click.version_option(__version__, front_page.VERSION_FLAG, prog_name=front_page.PROGRAM)
def app() -> None:
    """All verbs; `front_page` has the help."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a verb and leave with its exit code."""
    with clean_output():
        code = code_after_output(_exit_code(arguments))
    sys.exit(code)


def _exit_code(arguments: list[str] | None) -> int:
    """Run a verb; every error that a person can do something about is a line and a code."""
    width = front_page.page_width(front_page.terminal_columns())  # or click loads shutil to ask for it
    try:
        with keyboard_interrupts():
            # The time is for the budget of a run: it counts from the start of the command.
            code = app.main(
                arguments,
                front_page.PROGRAM,
                standalone_mode=False,
                terminal_width=width,
                obj=time.monotonic(),
            )
    except SystemExit as leaving:
        code = leaving.code
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.ClickException as error:
        code = _report(_one_line(error), 2)
    except ScalescopeError as error:
        code = _report(str(error), error.exit_code)
    except Interrupted as interruption:
        name = signal.Signals(interruption.signum).name
        code = _report(f"stopped by {name}; {interruption.kept}", interruption.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = _report("stopped by SIGINT", 130)
    except OSError as error:
        if error.errno in _NO_SUCH_PLACE:
            return _report(f"{str(error.filename)[:_LONGEST_NAME]!r}: {error.strerror}", ExitCode.BAD_INPUT)
        if error.errno not in _DISK_IS_FULL:
            raise
        code = _report(f"the output cannot be written: {error.strerror}", ExitCode.STORAGE)
    return code if isinstance(code, int) else 0


def _one_line(error: click.ClickException) -> str:
    message = error.format_message().replace("\n", " ")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and context is not None:
        from scalescope.catalog.setting import nearest

        options = context.command.params
        flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
        message = f"no such option {error.option_name}{nearest(error.option_name, flags)}"
    if context is None:
        return message
    return f"{message[:1].lower()}{message[1:].rstrip('.')} (see {context.command_path} --help)"


def _report(message: str, code: int) -> int:
    click.echo(f"scalescope: {printable(message)}", err=True)
    return code
