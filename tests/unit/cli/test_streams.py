"""What standard output cannot encode is written with other characters."""

import io
import re
import sys
from pathlib import Path

import pytest

from scalescope.cli import app
from tests.conftest import Cli

_SCALE = Path(__file__).parents[2] / "stored_runs" / "scale"


def test_minus_signs_and_all_other_signs_survive_ascii(cli: Cli) -> None:
    explained = cli("explain", "-v", str(_SCALE), PYTHONIOENCODING="ascii")
    assert explained.returncode == 0
    assert explained.stdout.isascii() and "?" not in explained.stdout
    assert re.search(r" -\d+\.\d+ to \d+\.\d+ ms", " ".join(explained.stdout.split()))


@pytest.mark.parametrize(
    ("words", "code", "begins"),
    [
        (["tune", "--help"], 0, b"Usage: scalescope tune "),
        (["train", "\N{MINUS SIGN}\N{MULTIPLICATION SIGN}.yaml"], 2, b"scalescope: -x.yaml: No such file"),
    ],
)
def test_help_and_errors_are_ascii_too(
    words: list[str], code: int, begins: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as leaving:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        app.main(words)
    assert leaving.value.code == code
    assert written.getvalue().isascii() and written.getvalue().startswith(begins)
