"""Every pipeline test runs in an empty folder of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` draws no page, which takes seconds: for tests that do not need it."""
    monkeypatch.setattr("scalescope.studies.report.page_of", lambda run: "")
