"""The page without a verb: the text that click would print, made without click."""

import subprocess
import sys
from pathlib import Path

import click
import pytest

import scalescope.cli.verbs
from scalescope.cli import app, front_page
from tests.speed import patience

VERBS = sorted(path.stem for path in Path(scalescope.cli.verbs.__path__[0]).glob("[a-z]*.py"))
HEAVY = {"click", "yaml", "pydantic", "rich", "torch", "numpy", "scalescope.catalog", "scalescope.studies"}


@pytest.fixture
def context() -> click.Context:
    return app.app.make_context(front_page.PROGRAM, [], resilient_parsing=True, max_content_width=100)


@pytest.mark.parametrize("columns", [20, 52, 60, 72, 80, 100, 102, 300])
def test_help_is_what_click_would_print(
    context: click.Context, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert front_page.help_text(columns) == click.Group.get_help(app.app, context)
    assert front_page.help_text(front_page.terminal_columns()) == app.app.get_help(context)


@pytest.mark.parametrize("columns", [60, 100])
def test_every_verb_has_its_line(columns: int) -> None:
    lines = front_page.help_text(columns).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert sorted(line.split()[0] for line in lines) == VERBS
    assert all(len(line) <= columns for line in lines)
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_is_answered(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert front_page.answer(arguments) == front_page.help_text(90)


def test_the_version_is_what_click_would_print(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app.main(["--version"])
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


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",), ("--version",)])
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
