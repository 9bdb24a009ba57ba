"""A verb in any folder of its package is found: nothing is registered."""

from pathlib import Path

import click.testing

from scalescope.cli import app, front_page
from tests.unit.extending import extended

_VERB = '''
import click


@click.command("greet")
@click.argument("name")
def command(name: str) -> None:
    """Greet a person. This is not in the list."""
    click.echo(f"hello {name}")
'''


def test_a_new_verb_is_listed_and_runs(tmp_path: Path) -> None:
    with extended("scalescope.cli.verbs", tmp_path / "more", greet=_VERB):
        assert "greet" in front_page.verb_names()
        lines = [line.split() for line in front_page.help_text(100).splitlines()]
        assert ["greet", "Greet", "a", "person."] in lines
        ended = click.testing.CliRunner().invoke(app.app, ["greet", "Ada"])
        assert (ended.exit_code, ended.output) == (0, "hello Ada\n")
    assert "greet" not in front_page.verb_names()
    assert click.testing.CliRunner().invoke(app.app, ["greet", "Ada"]).exit_code == 2


def test_a_verb_of_the_package_is_not_replaced_by_one_of_the_same_name(tmp_path: Path) -> None:
    before = front_page.help_text(100)
    with extended("scalescope.cli.verbs", tmp_path / "more", check=_VERB):
        assert front_page.help_text(100) == before
