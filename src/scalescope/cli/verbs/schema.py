"""`scalescope schema`: the JSON Schema of a result."""

import click

from scalescope.cli.help_pages import VerbCommand


@click.command("schema", cls=VerbCommand)
def command() -> None:
    """Print the JSON Schema of one line of trials.jsonl.

    Examples:

      scalescope schema
      scalescope schema > trial.schema.json
    """
    from scalescope.results.schema import schema_text

    click.echo(schema_text())
