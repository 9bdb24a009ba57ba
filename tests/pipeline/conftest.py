"""Every pipeline test runs in an empty folder of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main job draws no page, which takes seconds: for tests that do not look at it."""
    monkeypatch.setattr("scalescope.studies.report.page_of", lambda run: "")
