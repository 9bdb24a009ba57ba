"""NCCL's log of attached ranks is switched on before they start, unless the user chose what is logged."""

import contextlib
from pathlib import Path

import pytest

from scalescope.launch.attached.nccl_debug import LOG_VARIABLE, nccl_log_variables
from scalescope.launch.attached.rank_context import RankContext
from scalescope.launch.attached.worker_child import worker_variables


def test_every_rank_logs_how_it_connects_into_a_file_of_its_own(tmp_path: Path) -> None:
    variables = nccl_log_variables({}, tmp_path)
    assert variables["NCCL_DEBUG"] == "INFO"
    assert variables["NCCL_DEBUG_SUBSYS"].split(",") == [
        "INIT",
        "GRAPH",
        "NET",
        "ENV",
    ]  # no line per collective
    assert variables["NCCL_DEBUG_FILE"] == variables[LOG_VARIABLE] == str(tmp_path / "nccl.log")


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE"])
def test_what_the_user_set_is_respected(tmp_path: Path, name: str) -> None:
    assert nccl_log_variables({name: "WARN"}, tmp_path) == {}


def test_the_user_s_subsystems_are_kept(tmp_path: Path) -> None:
    assert nccl_log_variables({"NCCL_DEBUG_SUBSYS": "ALL"}, tmp_path)["NCCL_DEBUG_SUBSYS"] == "ALL"


def test_the_worker_starts_with_these_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.ExitStack() as held:
        first, _ = worker_variables(RankContext(0, 2), held, 300.0)
        second, _ = worker_variables(RankContext(1, 2), held, 300.0)
        assert first["NCCL_DEBUG"] == second["NCCL_DEBUG"] == "INFO"
        assert first["NCCL_DEBUG_FILE"] != second["NCCL_DEBUG_FILE"]
        assert Path(first["NCCL_DEBUG_FILE"]).parent.is_dir()
    assert not Path(first["NCCL_DEBUG_FILE"]).parent.exists()
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    with contextlib.ExitStack() as held:
        assert worker_variables(RankContext(0, 2), held, 300.0) == ({"SCALESCOPE_INIT_TIMEOUT": "300"}, None)
