"""Every pipeline test runs in an empty folder of its own; what a module shares has a cache of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of a module store; every test has yet another folder."""
    with pytest.MonkeyPatch.context() as environment:
        folder = tmp_path_factory.mktemp("cache")
        environment.setenv("XDG_CACHE_HOME", str(folder))
        environment.setenv("XDG_DATA_HOME", str(folder / "data"))
        environment.delenv("SCALESCOPE_LEDGER", raising=False)
        yield


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` draws no page, which takes seconds: for tests that do not need it."""
    monkeypatch.setattr("scalescope.studies.report.page_of", lambda run: "")
