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

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(app, {}, "scalescope", "_SCALESCOPE_COMPLETE").source())
