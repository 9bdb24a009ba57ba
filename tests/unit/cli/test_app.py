"""The command line as a whole: help, hints, one line and an exit code for what is wrong."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import scalescope.cli.verbs
from scalescope.catalog import cards
from scalescope.catalog.measuring import Measuring
from scalescope.catalog.setting import settings_of
from scalescope.cli import app
from scalescope.errors import (
    BadInput,
    CannotRun,
    Interrupted,
    ScalescopeError,
    StorageError,
)
from tests.builders.calling import called
from tests.speed import patience

VERBS = sorted(path.stem for path in Path(scalescope.cli.verbs.__path__[0]).glob("[a-z]*.py"))
MEASURING = ("run", "scale", "train")
FIRST = ("run", "train", "scale", "comm")
Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call `main` in an empty directory; returns code, out and err."""
    monkeypatch.chdir(tmp_path)
    return partial(called, capsys)


def refusal(run: Run, *arguments: str) -> str:
    """The one line that refuses a command, which leaves nothing behind and ends with exit code 2."""
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("scalescope: ")
    assert ended.err.endswith("\n")
    assert ended.err.removesuffix("\n").isprintable()
    assert list(Path.cwd().iterdir()) == []
    return str(ended.err).removeprefix("scalescope: ").removesuffix("\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_verb_and_the_exit_codes(run: Run, flag: str) -> None:
    ended = run(flag)
    assert (ended.code, ended.err) == (0, "")
    listed = [
        line.split()[0] for line in ended.out.partition("Commands:")[2].splitlines()[1:] if line[:3].strip()
    ]
    assert sorted(set(listed) & set(VERBS)) == VERBS
    assert "Exit codes: 0 ok, 2 bad input" in ended.out


def test_help_shows_the_main_job_first(run: Run) -> None:
    commands = run("--help").out.partition("Commands:")[2].split()
    assert commands[0] == "run"
    places = [commands.index(verb) for verb in (*FIRST, *sorted(set(VERBS) - set(FIRST)))]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(run: Run, verb: str) -> None:
    ended = run(verb, "--help")
    assert (ended.code, ended.err) == (0, "")
    usage, blank, purpose, *_ = ended.out.splitlines()
    assert usage.startswith(f"Usage: scalescope {verb} ")
    assert (blank, purpose[:2]) == ("", "  ")
    assert purpose.strip()


@pytest.mark.parametrize("verb", MEASURING)
def test_the_help_of_a_measuring_verb_has_every_setting_and_nothing_internal(run: Run, verb: str) -> None:
    words = set(run(verb, "--help-all").out.replace("/", " ").replace(",", " ").split())
    settings = [versions[0] for versions in cards.all_settings("train").values()] + list(
        settings_of(Measuring)
    )
    assert {setting.flag for setting in settings if not setting.internal} <= words
    assert not {setting.flag for setting in settings if setting.internal} & words
    assert {"--dry-run", "--resume", "--strict", "--yes", "--verbose"} <= words


def test_the_help_of_a_measuring_verb_is_grouped_by_card(run: Run) -> None:
    lines = run("train", "--help-all").out.splitlines()
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings.index("Training") < headings.index("Placement") < headings.index("Run")
    assert {"Placement", "Workload mlp", "Strategy ddp", "Lever precision", "Run"} <= set(headings)


@pytest.mark.parametrize(("verb", "repeats"), [("run", 5), ("scale", 5), ("train", 1)])
def test_help_shows_the_defaults_of_the_verb(run: Run, verb: str, repeats: int) -> None:
    text = " ".join(run(verb, "--help-all").out.split())
    assert f"a claim at least 5. [default: {repeats}]" in text


def test_nothing_typed_shows_the_help_as_it_is_meant_to_be_read(run: Run) -> None:
    ended = run()
    lines = (ended.out + ended.err).splitlines()
    assert lines[0].startswith("Usage: scalescope ")
    assert "Commands:" in lines


def test_version(run: Run) -> None:
    ended = run("--version")
    assert ended.code == 0
    assert ended.out.startswith("scalescope, version ")


BAD_COMMANDS = {
    "trian": "no such verb 'trian'; did you mean train? (see scalescope --help)",
    "--verison": "no such option --verison; did you mean --version? (see scalescope --help)",
    "-x": "no such option -x (see scalescope --help)",
    "train --batchsize 3": "no such option --batchsize; did you mean --batch-size? (see scalescope train",
    "scale --worldsize=3": "no such option --worldsize; did you mean --world-size? (see scalescope scale",
    "train --without-communication": "no such option --without-communication",
    "train a.yaml b.yaml": "got unexpected extra argument (b.yaml) (see scalescope train --help)",
    "train --batch-size": "Option '--batch-size' requires an argument",
    "train --env A": "--env A: expected NAME=VALUE",
    "train --env =1": "--env : '' is not a valid name of an environment variable",
    "train none.yaml": "none.yaml: No such file or directory",
    "train .": ".: not a regular file",
    "train --batch-size ''": "--batch-size: expected a whole number, got ''",
    "train --batch-size 8,": "--batch-size: expected a whole number, got ''",
    "train --steps-per-epoch al": "--steps-per-epoch: expected a whole number, auto or all, got 'al'; "
    "did you mean all?",
    "train --threads-per-rank x": "--threads-per-rank: expected a whole number or auto, got 'x'",
    "train --batch-size 8,8": "--batch-size: 8 is given twice",
    "train --batch-size 8 --global-batch-size 8": "--global-batch-size: give batch_size",
    "train --world-size 0": "--world-size: must be at least 1, got 0",
    "train --backend ncll": "--backend: must be one of gloo, nccl, auto, got 'ncll'; did you mean nccl?",
    "train --strategy dpp": "--strategy: unknown strategy 'dpp'; known: ",
    "train --repeats 1,2": "--repeats: expected a whole number, got '1,2'",
    "train --name ../x": "--name: expected 1 to 64 letters",
    "train --name \x1b[31m": "--name: expected a printable word, got '\\x1b[31m'",
    "train --profile-steps 2": "--profile-steps requires --profile",
    "train --profile-ranks 0": "--profile-ranks requires --profile",
    "train --profile-ranges-only": "--profile-ranges-only requires --profile",
    "train --nsys": "--nsys requires --profile",
    "train --profile --profile-steps 0": "invalid value for '--profile-steps': 0 is not in the range",
    "run --benchmark trainig": "--benchmark: 'trainig' is not one of comm, training",
    "run --warmup 1": "invalid value for '--warmup': 1 is not in the range x>=3 (see scalescope run --help)",
    "completion tcsh": "invalid value for ",
}


@pytest.mark.parametrize(("command", "message"), BAD_COMMANDS.items(), ids=BAD_COMMANDS)
def test_bad_input_is_one_line_with_a_hint(run: Run, command: str, message: str) -> None:
    error = refusal(run, *shlex.split(command))
    assert error.startswith(message), error


def test_the_negative_form_of_a_switch_is_suggested_too(run: Run) -> None:
    error = refusal(run, "train", "--no-static-grph")
    assert "; did you mean --no-static-graph?" in error


def test_a_verb_far_from_all_gets_the_list(run: Run) -> None:
    assert refusal(run, "xyzzy") == (
        f"no such verb 'xyzzy'; known: {', '.join(FIRST)}, "
        f"{', '.join(sorted(set(VERBS) - set(FIRST)))} (see scalescope --help)"
    )


def test_a_bad_file_is_named_with_its_line(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("elsewhere") / "e.yaml"
    path.write_text("epochs: 1\nbatchsize: 3\n")
    assert refusal(run, "train", str(path)) == f"{path}:2: unknown key batchsize; did you mean batch_size?"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_scripts_are_printed(run: Run, shell: str) -> None:
    ended = run("completion", shell)
    assert ended.code == 0
    assert "_SCALESCOPE_COMPLETE" in ended.out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ScalescopeError("x"), 1, "scalescope: x\n"),
        (BadInput("x"), 2, "scalescope: x\n"),
        (CannotRun("x"), 3, "scalescope: x\n"),
        (StorageError("x"), 7, "scalescope: x\n"),
        (Interrupted(1), 129, "scalescope: stopped by SIGHUP; nothing was measured yet\n"),
        (Interrupted(2), 130, "scalescope: stopped by SIGINT; nothing was measured yet\n"),
        (Interrupted(15), 143, "scalescope: stopped by SIGTERM; nothing was measured yet\n"),
        (KeyboardInterrupt(), 130, "scalescope: stopped by SIGINT\n"),
    ],
    ids=repr,
)
def test_every_error_has_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(context: object) -> None:
        raise error

    monkeypatch.setattr(app.app, "invoke", fail)
    ended = run("list")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.lstrip() == message  # a terminal's ^C is given a line of its own first


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(app.app, "invoke", fail)
    with pytest.raises(ZeroDivisionError):
        app.main(["list"])


@pytest.mark.parametrize(
    ("command", "code", "unwanted"),
    [
        ("train --help", 0, {"torch", "pydantic", "rich", "numpy", "yaml"}),
        ("settings precision", 0, {"torch", "numpy"}),
        ("train none.yaml", 2, {"torch", "numpy"}),
    ],
)
def test_what_measures_nothing_loads_nothing_heavy(
    command: str, code: int, unwanted: set[str], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "scalescope", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert ended.returncode == code
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"scalescope", "click"} <= loaded
    assert not unwanted & loaded
