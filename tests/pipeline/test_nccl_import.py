"""`comm --import`: output of nccl-tests becomes a run like any other."""

import json
from pathlib import Path

import pytest

from scalescope.errors import BadInput
from scalescope.results.run import load_run
from scalescope.studies.comm import CommStudy, import_nccl

from .recording import summary_of

HEAD = """\
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node1 device  0 [0000:0f:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4711 on      node1 device  1 [0000:2d:00] NVIDIA H200
#
"""
LINES = """\
        1024           256     float     sum      -1    20.00    0.05    0.05      0    10.00    0.10    0.10      0
     1048576        262144     float     sum      -1   100.00   10.49   10.49      0    80.00   13.11   13.11      0
     1048576        524288      half     sum      -1   200.00    5.24    5.24      0   160.00    6.55    6.55    N/A
"""  # noqa: E501 - its lines are that long


def write(text: str, name: str = "theirs.txt") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_a_table_becomes_a_run() -> None:
    report = import_nccl(CommStudy(), write(HEAD + LINES), "run", None, None)
    assert (report.exit_code, report.path) == (0, Path("run"))
    assert report.sections[0].lines[0].startswith("all_reduce over 2 ranks takes 20.0 µs")
    rows = summary_of(report.path)["results"]["communication"]["all_reduce"]
    assert {
        (row["dtype"], row["size_bytes"], row["in_place"]): pytest.approx(row["time_s"]) for row in rows
    } == {
        ("float32", 1 << 10, False): 20e-6,
        ("float32", 1 << 10, True): 10e-6,
        ("float32", 1 << 20, False): 100e-6,
        ("float32", 1 << 20, True): 80e-6,
        ("float16", 1 << 20, False): 200e-6,
        ("float16", 1 << 20, True): 160e-6,
    }
    assert {row["world_size"] for row in rows} == {2}
    assert {row["last_rank"] for row in rows} == {None}
    curves = json.loads(Path("run/curve.json").read_text())["curves"]
    assert [(curve["dtype"], curve["world_size"], len(curve["points"])) for curve in curves] == [
        ("float32", 2, 2),
        ("float16", 2, 1),
    ]
    assert json.loads(Path("run/environment.json").read_text()) == {"imported_from": "theirs.txt"}
    run = load_run("run")
    assert run.warnings == ()
    assert {(result.status, result.environment_id) for result in run.results} == {("ok", "imported")}
    assert sorted(result.order for result in run.results) == [0, 1]
    assert {result.settings["dtype"] for result in run.results} == {"float32", "float16"}
    before = Path("run/trials.jsonl").read_bytes()
    with pytest.raises(BadInput):
        import_nccl(CommStudy(), Path("theirs.txt"), "run", None, None)
    assert Path("run/trials.jsonl").read_bytes() == before


def test_flags_override_what_the_file_names() -> None:
    report = import_nccl(CommStudy(), write(LINES), "run", 8, "broadcast")
    (name,) = summary_of(report.path)["results"]["communication"]
    assert name == "broadcast"
    assert report.sections[0].lines[0].startswith("broadcast over 8 ranks takes ")


def test_a_file_without_a_rank_count_requires_world_size_and_leaves_nothing() -> None:
    path = write(LINES)
    with pytest.raises(BadInput) as caught:
        import_nccl(CommStudy(), path, "run", None, None)
    assert str(caught.value).startswith("theirs.txt: ") and "--world-size" in str(caught.value)
    assert list(Path().iterdir()) == [path]


def test_without_a_folder_the_import_is_the_latest_run() -> None:
    report = import_nccl(CommStudy(), write(HEAD + LINES), None, None, None)
    assert report.path is not None
    assert Path("runs/latest").resolve() == report.path.resolve()


@pytest.mark.parametrize("content", [b"nothing of the kind\n", b"\xff\xfe\x00", b'{"results": [1]}'])
def test_a_file_not_written_by_nccl_tests_is_refused_and_leaves_nothing(content: bytes) -> None:
    path = Path("theirs")
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        import_nccl(CommStudy(), path, "run", 2, None)
    assert str(caught.value).startswith("theirs: ")
    with pytest.raises(BadInput, match="nowhere: cannot be read"):
        import_nccl(CommStudy(), Path("nowhere"), "run", 2, None)
    assert list(Path().iterdir()) == [path]
