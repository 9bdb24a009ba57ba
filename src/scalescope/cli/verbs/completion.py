"""`scalescope completion`: shell completion."""

import click

from scalescope.cli.help_pages import VerbCommand


@click.command("completion", cls=VerbCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    A shell reads it from its own folder, or when it starts. Examples:

      scalescope completion fish > ~/.config/fish/completions/scalescope.fish
      scalescope completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    from scalescope.cli.app import app
    from scalescope.cli.front_page import COMPLETION_VARIABLE, PROGRAM

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(app, {}, PROGRAM, COMPLETION_VARIABLE).source())
