"""`-- COMMAND`: what stands behind the dashes is a training command, and no flag is read from it."""

from typing import Any

import click
import pytest

from scalescope.cli import app
from scalescope.cli.options import given_flags
from scalescope.experiment.given import Entries


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the flags of a command line say, before anything is measured."""
    collected: list[Entries] = []

    def collect(verb: str, *words: str) -> Entries:
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


@pytest.mark.parametrize("verb", ["train", "scale", "tune", "run"])
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
