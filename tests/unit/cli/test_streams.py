"""What standard output cannot encode is written with other characters."""

import re
from pathlib import Path

import pytest

from tests.conftest import Cli

_SCALE = Path(__file__).parents[2] / "old_runs" / "scale"


def test_minus_signs_and_all_other_signs_survive_ascii(cli: Cli) -> None:
    explained = cli("explain", "-v", str(_SCALE), PYTHONIOENCODING="ascii")
    assert explained.returncode == 0
    assert explained.stdout.isascii() and "?" not in explained.stdout
    assert re.search(r" -\d+\.\d+ to \d+\.\d+ ms", " ".join(explained.stdout.split()))


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_help_is_ascii_too(cli: Cli, verb: str) -> None:
    text = cli(verb, "--help", PYTHONIOENCODING="ascii").stdout
    assert text.isascii()


def test_errors_are_ascii_too(cli: Cli) -> None:
    refused = cli("train", "−×.yaml", PYTHONIOENCODING="ascii")
    assert (refused.returncode, refused.stderr) == (2, "scalescope: -x.yaml: No such file or directory\n")
