"""Folders of traces: which files are traces, which belong to one job, and what cannot be read."""

from pathlib import Path

import pytest

from scalescope.errors import BadInput
from scalescope.studies.traces import are_traces, explain_traces, read_job
from tests.builders.rank_traces import write_rank


def write_job(folder: Path, *, late_ms: float = 0.0) -> Path:
    """Two ranks; the second is late."""
    write_rank(folder / "rank0.json", 0)
    write_rank(folder / "rank1.json", 1, compute_ms=60.0 + late_ms)
    return folder


def test_the_ranks_of_a_folder_are_explained_together(tmp_path: Path) -> None:
    read: list[tuple[int, int]] = []
    folder = write_job(tmp_path / "job", late_ms=20.0)
    explained = explain_traces([folder], lambda done, of: read.append((done, of)))
    job = explained.job
    assert (list(job.numbered), job.unread, job.is_complete) == ([0, 1], {}, True)
    assert job.step_times_s == pytest.approx([0.095, 0.1])
    assert (job.waiting.known, job.waiting.late_ranks) == ("all", (1,))
    assert job.waiting.waiting_s == pytest.approx(0.01)
    assert explained.diagnosis.findings[0].rule == "slower kernels than other ranks"
    assert read == [(1, 2), (2, 2)]


def test_what_cannot_be_read_is_named_and_the_rest_is_explained(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job")
    whole = (folder / "rank0.json").read_text()
    (folder / "rank2.json").write_text(whole[: len(whole) // 2])
    (folder / "other.json").write_text("{}")
    job = read_job([folder])
    assert list(job.numbered) == [0, 1]
    assert {Path(name).name for name in job.unread} == {"rank2.json", "other.json"}
    assert "damaged" in job.unread[str(folder / "rank2.json")]


def test_where_nothing_can_be_read_the_first_reason_is_told(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"traceEvents": [')
    with pytest.raises(BadInput, match=r"a\.json cannot be read: the file is damaged.*1 more file"):
        read_job([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="contains no traces"):
        read_job([tmp_path / "empty"])


def test_another_job_in_the_folder_is_left_out(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job")
    write_rank(folder / "alone_0.json", 0, ranks=1)
    job = read_job([folder])
    assert (list(job.numbered), job.world_size) == ([0, 1], 2)
    assert list(job.unread) == [str(folder / "alone_0.json")]


def test_files_are_those_of_one_job_whatever_they_are_named(tmp_path: Path) -> None:
    paths = [write_rank(tmp_path / "host-a.json", 0), write_rank(tmp_path / "host-b.json.gz", 1)]
    assert list(read_job([paths[1], paths[0], paths[1]]).numbered) == [0, 1]


def test_a_rank_is_read_once(tmp_path: Path) -> None:
    write_rank(tmp_path / "step10_rank0.json", 0)
    write_rank(tmp_path / "step10_rank1.json", 1)
    write_rank(tmp_path / "step20_rank0.json", 0)
    job = read_job([tmp_path])
    assert list(job.numbered) == [0, 1]
    assert list(job.unread) == [str(tmp_path / "step20_rank0.json")]


def test_packed_and_plain_files_are_of_one_job(tmp_path: Path) -> None:
    for rank, ending in enumerate(("json", "json.gz", "json")):
        write_rank(tmp_path / f"trace_rank{rank}.{ending}", rank, 3)
    write_rank(tmp_path / "other.json", 0, 2)
    assert list(read_job([tmp_path]).numbered) == [0, 1, 2]


def test_the_name_of_a_file_tells_its_rank_where_the_trace_does_not(tmp_path: Path) -> None:
    for rank in (0, 5):
        path = write_rank(tmp_path / f"trace_rank{rank}.json", rank)
        path.write_text(path.read_text().replace('"rank"', '"unknown"'))
    assert list(read_job([tmp_path]).numbered) == [0, 5]


def test_traces_are_told_by_what_is_in_them(tmp_path: Path) -> None:
    trace = write_rank(tmp_path / "folder" / "rank0.json")
    damaged = tmp_path / "damaged.json.gz"
    damaged.write_bytes(b"not compressed")
    results = tmp_path / "results.json"
    results.write_text('{"results": []}')
    empty = tmp_path / "empty"
    empty.mkdir()
    assert are_traces([trace]) and are_traces([tmp_path / "folder", trace]) and are_traces([damaged])
    for others in ([], [empty], [results], [tmp_path / "none.json"], [trace, results]):
        assert not are_traces(others)


def test_a_run_folder_is_a_run_whatever_traces_it_holds(tmp_path: Path) -> None:
    write_job(tmp_path)
    assert are_traces([tmp_path])
    (tmp_path / "trials.jsonl").write_text("")
    assert not are_traces([tmp_path])
