"""Where multiprocessing keeps its sockets: in the launch's directory, where it is there and short enough."""

import multiprocessing.process
import multiprocessing.util
from pathlib import Path
from typing import Any

import pytest

from scalescope.worker.process.temporary_files import use_directory


@pytest.fixture
def configuration(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    monkeypatch.setattr(multiprocessing.process.current_process(), "_config", changed)
    return changed


def test_multiprocessing_uses_the_directory(configuration: dict[str, Any], tmp_path: Path) -> None:
    directory = tmp_path if len(str(tmp_path)) < 80 else Path("/tmp")
    use_directory(directory)
    assert multiprocessing.util.get_temp_dir() == str(directory)


@pytest.mark.parametrize("name", ["nowhere", "x" * 100])
def test_a_directory_that_cannot_be_used_is_not(
    configuration: dict[str, Any], tmp_path: Path, name: str
) -> None:
    if len(name) == 100:
        (tmp_path / name).mkdir()
    use_directory(tmp_path / name)
    assert configuration == {}
