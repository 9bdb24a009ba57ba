"""`scalescope completion`: shell completion."""

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    For bash: scalescope completion bash > ~/.local/share/bash-completion/completions/scalescope
    """
    from click.shell_completion import get_completion_class

    from scalescope.cli.app import app
    from scalescope.cli.front_page import COMPLETION_VARIABLE, PROGRAM

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(app, {}, PROGRAM, COMPLETION_VARIABLE).source())
