"""Scalars for TensorBoard, read back from what was written."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import CannotRun
from scalescope.studies.report import ReportOptions, gather, report
from tests.builders.studies import train
from tests.pipeline.recording import RecordingWatcher, ask
from tests.simulated.launcher import CostModel, FakeLauncher


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "run"
    asked = ask("train", batch_size=[8, 16], repeats=1, output_dir=str(path))
    train(asked, FakeLauncher(CostModel()), RecordingWatcher())
    return path


def test_every_configuration_is_a_run_of_tensorboard(run: Path, tmp_path: Path) -> None:
    report((run,), tmp_path / "out", ReportOptions(formats=("csv",), tensorboard=tmp_path / "board"))
    folders = sorted(path.name for path in (tmp_path / "board").iterdir())
    assert len(folders) == 2
    assert folders[0].startswith("single-1_rank-batch_16")
    assert all(list((tmp_path / "board" / name).glob("events.*")) for name in folders)


def test_step_times_and_the_summary_are_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scalescope.report.render import cells

    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            pass

    monkeypatch.setattr(cells, "_writer", lambda: Writer)
    assert cells.write_scalars(gather((run,), ReportOptions()), tmp_path) == len(written)
    names = {name for name, _, _ in written}
    assert {"training/step_time_s", "summary/samples_per_s"} <= names


def test_a_missing_library_is_reported_with_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "tensorboardX":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(CannotRun, match="scalescope\\[track\\]"):
        report((run,), tmp_path / "out", ReportOptions(formats=("csv",), tensorboard=tmp_path / "board"))
