"""`scalescope schema`: the JSON Schema of a result."""

import click


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of one line of trials.jsonl."""
    from scalescope.results.schema import schema_text

    click.echo(schema_text())
