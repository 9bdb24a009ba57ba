"""The command line, called in the test's own process."""

from types import SimpleNamespace

import pytest

from scalescope.cli import app


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> SimpleNamespace:
    """Call `main`; returns its code, and what it printed."""
    with pytest.raises(SystemExit) as leaving:
        app.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return SimpleNamespace(code=leaving.value.code or 0, out=out, err=err)
