"""--network: what can be given, and what is refused in one line."""

import json
from pathlib import Path

import pytest

from scalescope.analysis.prediction.setup import RankLayout
from scalescope.errors import BadInput
from scalescope.studies.prediction import network_of
from tests.builders.runs import make_runs

CURVE = {"collective": "all_reduce", "world_size": 4, "points": [[1024, 1e-4], [1 << 20, 2e-3]]}
TABLE = """\
# Collective test starting: all_reduce_perf
# ranks 8
  1048576  262144  float  sum  -1  100.0  10.49  18.35  0  100.0  10.49  18.35  0
"""


def time_s(network: str, size: int, ranks: int) -> float:
    return network_of(network).time_of("all_reduce", size, ranks, RankLayout()).time_s


def test_a_curve_json(tmp_path: Path) -> None:
    (tmp_path / "curve.json").write_text(json.dumps({"curves": [CURVE]}))
    assert time_s(str(tmp_path / "curve.json"), 1 << 20, 4) == pytest.approx(2e-3)


def test_a_run_of_comm_and_its_own_curve_json_agree(tmp_path: Path) -> None:
    make_runs(tmp_path, ["comm"])
    folder, file = str(tmp_path / "comm"), str(tmp_path / "comm" / "curve.json")
    assert time_s(folder, 1 << 20, 2) > 0.0
    assert time_s(folder, 1 << 20, 2) == pytest.approx(time_s(file, 1 << 20, 2))


def test_the_table_of_nccl_tests(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(TABLE)
    assert time_s(str(tmp_path / "out.txt"), 1 << 20, 8) == pytest.approx(1e-4)


def test_a_name() -> None:
    assert time_s("nvlink4", 1 << 26, 8) > 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"curves": [{"collective": "all_reduce"}]}',
            "not a curve.json: curves.0.world_size: Field required",
        ),
        ('{"curves": [{"collective": "x", "world_size": 2, "points": [[0, 1]]}]}', "points.0.0: Input"),
        ('{"curves": [{"collective": "x", "world_size": 2, "points": [[8, 1e999]]}]}', "points.0.1: Input"),
        ('{"curves": 3}', "not a curve.json"),
        ('{"curves": []}', "no curve of two or more ranks"),
        ("nothing of the kind", "contains neither a table nor JSON of nccl-tests"),
        (TABLE.replace("# ranks 8\n", ""), "does not say how many ranks it ran on"),
    ],
)
def test_a_file_that_holds_no_curve_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(BadInput, match=message) as refused:
        network_of(str(tmp_path / "file"))
    assert "\n" not in str(refused.value) and str(refused.value).startswith(f"--network {tmp_path}")


def test_other_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file or run folder"):
        network_of(str(tmp_path / "none.json"))
    with pytest.raises(BadInput, match="not a run folder"):
        network_of(str(tmp_path))
    make_runs(tmp_path, ["memory"])
    with pytest.raises(BadInput, match="has no times of collectives"):
        network_of(str(tmp_path / "memory"))
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with pytest.raises(BadInput, match="not text"):
        network_of(str(tmp_path / "binary"))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(BadInput):
        network_of("nvlonk")
