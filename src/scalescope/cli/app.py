"""The command line: finds the verbs, turns errors into one line and an exit code."""

import importlib
import os
import pkgutil
import signal
import sys

import click

from scalescope.catalog.setting import nearest
from scalescope.errors import Interrupted, ScalescopeError
from scalescope.version import __version__

_FIRST = ("run", "train", "scale", "comm")  # what most people come for; the rest follows by name


class Verbs(click.Group):
    """One module of `cli.verbs` for each verb, imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        package = importlib.import_module("scalescope.cli.verbs")
        found = [module.name for module in pkgutil.iter_modules(package.__path__)]
        first = [name for name in _FIRST if name in found]
        return first + sorted(set(found) - set(first))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"scalescope.cli.verbs.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            hint = nearest(args[0], known) or f"; known: {', '.join(known)}"
            raise click.UsageError(f"no such verb {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 ok, 2 bad input, 3 environment, 4 a worker failed, 5 hang, "
    "6 invalid or (--strict) unstable, 7 I/O, 8 a gate was missed, 129/130/143 signals.",
)
@click.version_option(__version__, prog_name="scalescope")
def app() -> None:
    """Measure how PyTorch training scales, explain what is lost, and prove what fixes it.

    Start with `scalescope run`: it looks at this machine and shows how training scales on it.
    """


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a verb and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a Latin-1 terminal must not cost a finished measurement
            stream.reconfigure(errors="replace")
    try:
        code = app.main(args=arguments, prog_name="scalescope", standalone_mode=False)
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
    except BrokenPipeError:  # the reader of our output has gone; nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would complain at its end
        code = 128 + signal.SIGPIPE
    sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: click.ClickException) -> str:
    message = error.format_message().replace("\n", " ")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and context is not None:
        parameters = context.command.params
        flags = [flag for one in parameters for flag in (*one.opts, *one.secondary_opts)]
        message = f"no such option {error.option_name}{nearest(error.option_name, flags)}"
    if context is None:
        return message
    return f"{message[:1].lower()}{message[1:].rstrip('.')} (see {context.command_path} --help)"


def _report(message: str, code: int) -> int:
    click.echo(f"scalescope: {message}", err=True)
    return code
