"""`-- COMMAND`: what stands behind the dashes is a training command, and no flag is read from it."""

from typing import Any

import pytest

from scalescope.cli import app, measuring
from scalescope.cli.options import given_flags
from scalescope.experiment.given import Entries

VERBS = ("train", "scale", "tune", "run")


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the flags of a command line say, before anything is measured."""
    collected: list[Entries] = []

    def collect(verb: str, *words: str) -> Entries:
        import click

        module = __import__(f"scalescope.cli.verbs.{verb}", fromlist=["command"])
        monkeypatch.setattr(
            module,
            "measure",
            lambda study, arguments: collected.append(given_flags(click.get_current_context())),
        )
        with pytest.raises(SystemExit) as leaving:
            app.main([verb, *words])
        assert leaving.value.code == 0
        return collected.pop()

    return collect


@pytest.mark.parametrize("verb", VERBS)
def test_words_behind_the_dashes_are_the_command(verb: str, entries: Any) -> None:
    words = ("torchrun", "--nproc-per-node={world_size}", "my train.py", "--repeats", "9", "--", "-v")
    given = entries(verb, "--repeats", "2", "--", *words)
    assert [value.text for value in given["command"]] == [
        "torchrun --nproc-per-node={world_size} 'my train.py' --repeats 9 -- -v"
    ]
    assert [value.text for value in given["repeats"]] == ["2"]


def test_a_value_of_vary_may_be_a_list(entries: Any) -> None:
    given = entries("scale", "--vary", "depth=1,2", "--vary", "depth=4", "--vary", "x=a", "--env", "A=1,2")
    texts = {name: [value.text for value in values] for name, values in given.items()}
    assert texts == {"vary.depth": ["1", "2", "4"], "vary.x": ["a"], "env.A": ["1,2"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scale", "--"], "-- is for a training command, but none follows"),
        (
            ["scale", "--command", "a", "--", "b"],
            "--command cannot be used with -- COMMAND; give one of them",
        ),
        (["scale", "--vary", "x", "--", "a"], "--vary x: expected NAME=VALUE"),
        (["scale", "--lr", "1", "--", "a"], "--lr cannot be used with a command: the script decides"),
        (["train", "--amp", "--", "a"], "--amp cannot be used with a command: the script decides"),
        (["comm", "--", "a"], "-- COMMAND: comm cannot measure a command; train, scale, tune and run can"),
        (
            ["memory", "--", "a"],
            "-- COMMAND: memory cannot measure a command; train, scale, tune and run can",
        ),
    ],
)
def test_what_does_not_work_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "with_ranks", lambda *arguments: pytest.fail("it was measured"))
    with pytest.raises(SystemExit) as leaving:
        app.main(words)
    assert leaving.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"scalescope: {message}")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_of_others_cannot_start_a_command(
    rank: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "RANK": rank,
        "WORLD_SIZE": "2",
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as leaving:
        app.main(["train", "--", "python", "train.py"])
    assert leaving.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scalescope: a command starts its own ranks")
