"""`explain`, `compare` and `report` of traces as typed: flags, files and exit codes."""

import json
from pathlib import Path

import pytest

from tests.builders.rank_traces import SECRETS, write_rank

from .conftest import Run


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two ranks, and a file that ends too early."""
    folder = tmp_path / "traces"
    write_rank(folder / "rank0.json", 0)
    whole = write_rank(folder / "rank1.json", 1, compute_ms=80.0).read_text()
    (folder / "rank2.json").write_text(whole[:500])
    return folder


def test_explain_prints_a_line_for_what_it_cannot_read(run: Run, traces: Path, tmp_path: Path) -> None:
    ended = run("explain", "traces", "--json", "t.json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("rank2.json") == 1
    data = json.loads((tmp_path / "t.json").read_text())
    assert (data["kind"], [rank["rank"] for rank in data["ranks"]]) == ("traces", [0, 1])
    assert list(data["unread"]) == ["traces/rank2.json"]
    assert data["findings"][0]["ranks"] == [1]
    told = ended.out + json.dumps(data)
    assert "train.py(12): train_step" in told  # of a path, the name of the file
    assert not [secret for secret in (*SECRETS, str(tmp_path)) if secret in told]


def test_explain_takes_single_files(run: Run, traces: Path) -> None:
    ended = run("explain", "traces/rank0.json", "-v")
    assert (ended.code, ended.err) == (0, "")
    assert "Not checked: waiting" in ended.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("explain empty", "empty"),
        ("explain damaged --json t.json", "damaged/rank2.json"),
        ("explain none.json", "none.json"),
        ("compare traces damaged", "damaged/rank2.json"),
        ("compare traces traces traces", "two"),
        ("compare traces traces --side-by-side", "--side-by-side"),
        ("report damaged", "damaged/rank2.json"),
        ("report empty", "empty"),
    ],
)
def test_where_nothing_can_be_explained_one_line_tells_why(
    run: Run, traces: Path, tmp_path: Path, arguments: str, named: str
) -> None:
    for name in ("empty", "damaged"):
        (tmp_path / name).mkdir()
    (traces / "rank2.json").rename(tmp_path / "damaged" / "rank2.json")
    ended = run(*arguments.split())
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert named in ended.err
    assert not (tmp_path / "t.json").exists()


def test_compare_writes_what_became_slower(run: Run, traces: Path, tmp_path: Path) -> None:
    write_rank(tmp_path / "before.json", 0, ranks=1, compute_ms=40.0)
    write_rank(tmp_path / "after.json", 0, ranks=1, compute_ms=70.0)
    ended = run(
        "compare", "before.json", "after.json", "--json", "c.json", "--markdown", "c.md", "--html", "c.html"
    )
    assert (ended.code, ended.err) == (0, "")
    assert "Where a step goes, before and after" in (tmp_path / "c.html").read_text()
    data = json.loads((tmp_path / "c.json").read_text())
    (row,) = data["operations"]
    assert (row["before_s"], row["after_s"]) == pytest.approx((0.04, 0.07))
    assert "aten::mm" in (tmp_path / "c.md").read_text()


def test_report_writes_a_page_and_figures(run: Run, traces: Path, tmp_path: Path) -> None:
    ended = run("report", "traces", "--figures", "--title", "A job")
    assert (ended.code, ended.err) == (0, "")
    folder = tmp_path / "trace-report"
    page = (folder / "report.html").read_text()
    assert "A job" in page and "rank2.json" in page
    first, figure = page.index("A step takes"), page.index("Where a step goes, by rank")
    assert first < figure < page.index('<section id="details"')
    assert json.loads((folder / "traces.json").read_text())["kind"] == "traces"
    assert {path.suffix for path in (folder / "figures").glob("trace_step*")} == {".png", ".svg", ".pdf"}
    assert not [secret for secret in SECRETS if secret in page]


def test_report_writes_the_formats_that_were_asked_for(run: Run, traces: Path, tmp_path: Path) -> None:
    assert run("report", "traces", "--format", "md", "--out", "here").code == 0
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["traces.md"]
