"""The page without a verb: the text that click would print, made without click, with a line per verb."""

import subprocess
import sys
from pathlib import Path

import click
import click.testing
import pytest

import scalescope.cli.verbs
from scalescope.cli import app, front_page
from tests.speed import patience
from tests.unit.extending import extended

VERBS = sorted(path.stem for path in Path(scalescope.cli.verbs.__path__[0]).glob("[a-z]*.py"))
HEAVY = {"click", "yaml", "pydantic", "rich", "torch", "numpy", "scalescope.catalog", "scalescope.studies"}


@pytest.fixture
def context() -> click.Context:
    return app.app.make_context(front_page.PROGRAM, [], resilient_parsing=True, max_content_width=100)


@pytest.mark.parametrize("columns", [20, 52, 80, 102, 300])
def test_help_is_what_click_would_print(
    context: click.Context, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert front_page.help_text(columns) == click.Group.get_help(app.app, context)
    assert front_page.help_text(front_page.terminal_columns()) == app.app.get_help(context)


def test_every_verb_has_its_line_and_the_main_job_is_first() -> None:
    page, _, codes = front_page.help_text(60).rpartition("\n\n")
    lines = page.partition("Commands:\n")[2].splitlines()
    first = ["run", "train", "scale", "comm"]
    assert [line.split()[0] for line in lines] == [*first, *sorted(set(VERBS) - set(first))]
    assert all(len(line) <= 60 for line in lines)
    assert all(len(line.split()) > 1 for line in lines)
    assert codes.strip().startswith("Exit codes: 0 ok, 2 bad input")


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_is_answered(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert front_page.answer(arguments) == front_page.help_text(90)


def test_the_version_is_what_click_would_print(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        app.main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == f"{front_page.answer(['--version'])}\n"


@pytest.mark.parametrize("line", ["scale", "scale --help", "--help scale", "--halp", "--version --help", ""])
def test_everything_else_is_left_to_click(line: str) -> None:
    assert front_page.answer(line.split(" ")) is None


@pytest.mark.parametrize(("given", "columns"), [("120", 120), ("0", 80), ("-3", 80), ("wide", 80), ("", 80)])
def test_the_width_is_the_given_one_or_the_usual(
    monkeypatch: pytest.MonkeyPatch, given: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", given)
    monkeypatch.setattr(sys, "__stdout__", None)
    assert front_page.terminal_columns() == columns


PROBE = """
import sys
sys.argv[0] = "scalescope"
from scalescope.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def run_main(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    source = Path(front_page.__file__).parents[2]  # also where another copy of the package is installed
    environment = {"PYTHONPATH": str(source), **variables}
    return subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(),
    )


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_the_page_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    ended = run_main(*arguments)
    loaded = set(ended.stderr.split())
    assert ended.returncode == 0
    assert ended.stdout == f"{front_page.answer(list(arguments))}\n"
    assert "scalescope.cli.front_page" in loaded
    assert not HEAVY & loaded
    assert not {name for name in loaded if name.startswith("scalescope.cli.verbs.")}


def test_completion_is_answered_where_nothing_is_typed() -> None:
    ended = run_main(
        _SCALESCOPE_COMPLETE="bash_complete", COMP_WORDS="scalescope exp", COMP_CWORD="1", PATH="/usr/bin"
    )
    assert ended.stdout == "plain,explain\n"
    assert ended.returncode == 0


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
