"""The card of own workloads refuses what can be seen to fail without running it."""

from pathlib import Path

import pytest

from scalescope.catalog import cards
from scalescope.catalog.workloads.custom import Custom
from scalescope.errors import BadInput

_SEVERAL = """
class Buildl:
    def other(self): pass

def build(rank, *, device, size=3): pass

def small(batch_size=1): pass

def helper(path): pass

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:build", r"nowhere.py: No such file or directory$"),
        ("mine.py:", r"'' is not a function name; expected FILE.py:FUNCTION$"),
        ("mine.py:a-b", r"'a-b' is not a function name"),
        ("a/b:build", r"'a/b' is neither a FILE.py nor a module name$"),
        ("mine.py:biuld", r"mine.py has no function biuld; did you mean build\? \(.*: build, small\)$"),
        ("mine.py:other", r"mine.py has no function other; .*: build, small$"),
        ("mine.py:main", r"mine.py has no function main; "),
        ("empty.py:build", r"empty.py has no function build; .*: none$"),
        ("torn.py:build", r"^torn.py:2: invalid syntax: def build\(:$"),
    ],
)
def test_what_can_be_seen_without_running_is_refused_before_the_launch(reference: str, message: str) -> None:
    Path("mine.py").write_text(_SEVERAL)
    Path("empty.py").write_text("")
    Path("torn.py").write_text("import torch\ndef build(:\n    pass\n")
    card = cards.card("workloads", reference)
    assert card is Custom
    with pytest.raises(BadInput, match=message):
        card.check_name(reference)


@pytest.mark.parametrize(
    "source",
    ["def build(): pass", "build = 5", "from x import build", "from x import *", "if 1:\n  def build(): 0"],
)
def test_a_function_that_may_be_there_is_left_to_the_ranks(source: str) -> None:
    Path("mine.py").write_text(source)
    Custom.check_name("mine.py:build")
