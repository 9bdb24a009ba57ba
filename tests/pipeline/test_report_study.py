"""`report` from run folders to files, and one line for what cannot be shown."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput, StorageError
from scalescope.report.chapters import chapters_of
from scalescope.report.section import Figure
from scalescope.studies.report import FORMATS, ReportOptions, gather, report
from tests.builders.calling import called
from tests.builders.runs import VERBS, make_failures, make_runs

FIGURES = {
    "imdb_epoch_time_detailed", "imdb_speedup_efficiency", "imdb_throughput", "imdb_accuracy",
    "mlp_speedup_efficiency", "mlp_throughput", "scaling", "waterfall", "collectives", "memory", "levers",
    "steps",
}  # fmt: skip
CHAPTERS = ("verdict", "findings", "scaling", "data", "collectives", "steps", "memory", "levers", "trials")
MOST_BYTES = 3_000_000
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from scalescope.cli.app import main
codes = []
for command in {}:
    try:
        main(command)
    except SystemExit as leaving:
        codes.append(int(leaving.code or 0))
print(codes, "scalescope.studies.prediction" in sys.modules)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="module")
def made(runs: Path) -> Path:
    out = runs.parent / "out"
    formats = tuple(name for name in FORMATS if name != "figures")  # each would be drawn three times more
    report([runs], out, ReportOptions(formats=formats))
    return out


def figures_of(*roots: Path, **options: Any) -> dict[str, Figure]:
    """The figures of a report by name, which are not drawn."""
    chapters = chapters_of(gather(roots, ReportOptions(**options)))
    return {figure.name: figure for chapter in chapters for figure in chapter.figures}


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Everything in the table of all configurations."""
    text = (folder / "tables" / "comprehensive_summary.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def test_every_figure_table_and_chapter_is_there(runs: Path, made: Path) -> None:
    figures = figures_of(runs)
    assert set(figures) >= FIGURES
    assert {path.name for path in (made / "tables").iterdir()} >= {
        "comprehensive_summary.csv", "summary_table.tex", "summary_table.md"
    }  # fmt: skip
    rows = rows_of(made)
    assert {row["dataset"] for row in rows} == {"mlp", "imdb"}
    assert any(row["validation_accuracy"] for row in rows)
    page = (made / "report.html").read_text()
    assert [name for name in CHAPTERS if f'<section id="{name}"' not in page] == []
    assert page.count("<figure>") == len(figures)
    assert len(page.encode()) < MOST_BYTES
    text = (made / "performance_report.txt").read_text()
    assert set(json.loads((made / "report.json").read_text())["runs"]) == set(VERBS)
    assert all(f"{verb}\n\n" in text for verb in VERBS)
    of_training = text.partition("train\n\n")[2].partition("comm\n\n")[0]
    assert "its cause was not measured" in of_training  # a loss that is not explained is not shown as none
    assert "No loss of speed was found" not in of_training


def test_the_same_runs_make_the_same_report_in_their_folder_or_below(runs: Path, tmp_path: Path) -> None:
    written = report([runs / "comm"], None, ReportOptions(formats=("html", "tex", "txt", "json")))
    names = ("report.html", "tables/summary_table.tex", "performance_report.txt", "report.json")
    assert set(written.files) == {runs / "comm" / name for name in names}
    report([runs / "comm"], tmp_path, ReportOptions(formats=("html", "tex", "txt", "json")))
    for name in names:
        assert (tmp_path / name).read_bytes() == (runs / "comm" / name).read_bytes()
    written = report([runs], None, ReportOptions(formats=("csv",)))
    assert written.files == (runs / "report" / "tables" / "comprehensive_summary.csv",)


def test_the_command_prints_the_paths_of_its_files_and_writes_figures_when_they_are_asked_for(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)
    cases = {
        "plain": ("--title=<My> title", "--open"),
        "page": ("--format=figures",),
        "column": ("--format=figures", "--width=column"),
    }
    printed, written = {}, {}
    for name, flags in cases.items():
        ended = called(capsys, "report", runs / "comm", "--out", name, *flags)
        assert ended.code == 0
        printed[name] = ended.out.splitlines()[1:]
        written[name] = {path.name for path in Path(name).iterdir()}
    assert (printed["plain"][0], printed["plain"][-1]) == ("plain: 3 files", "Report: plain/report.html")
    assert opened == [str(Path("plain/report.html").resolve())]
    assert written["plain"] == {"report.html", "tables", "performance_report.txt", "report.json"}
    page = Path("plain/report.html").read_text()
    assert "<svg" in page and "<h1>&lt;My&gt; title</h1>" in page
    for name, width in {"page": "518.4pt", "column": "252pt"}.items():
        assert written[name] == {"figures"}
        endings = {path.suffix for path in Path(name, "figures").glob("collectives.*")}
        assert endings == {".png", ".svg", ".pdf"}
        assert f'width="{width}"' in Path(name, "figures", "collectives.svg").read_text()


def test_only_the_data_sets_asked_for_and_a_setting_to_overlay(runs: Path, tmp_path: Path) -> None:
    report([runs], tmp_path, ReportOptions(formats=("csv",), datasets=("imdb",)))
    assert {row["dataset"] for row in rows_of(tmp_path)} == {"imdb"}
    names = set(figures_of(runs, datasets=("imdb",)))
    assert "imdb_throughput" in names and "mlp_throughput" not in names
    overlaid = figures_of(runs / "scale", by="precision").values()
    labels = {series.label for figure in overlaid for panel in figure.panels for series in panel.series}
    assert "batch 16, precision fp32" in labels


def test_runs_with_the_same_name_are_listed_by_path(tmp_path: Path) -> None:
    roots = [make_runs(tmp_path / name, ["comm"]) for name in ("a", "b")]
    report(roots, tmp_path / "out", ReportOptions(formats=("json",)))
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(data["runs"]) == {str(root / "comm") for root in roots}


def test_runs_that_failed_or_are_damaged_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    root = make_runs(tmp_path / "runs", ["comm"])
    for name in ("one", "two"):
        make_failures(root / name)
    with (root / "comm" / "trials.jsonl").open("a") as stream:
        stream.write('{"broken": \n')
    (root / "comm" / "results.json").write_text('{"value": NaN}')
    written = report([root], tmp_path / "out", ReportOptions(formats=("html", "json")))
    assert len(written.warnings) == 1 and "left out" in written.warnings[0]
    text = (tmp_path / "out" / "report.html").read_text()
    assert "no luck" in text
    assert text.count("two, one.") == 1  # those without results
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"]["comm"] is None


def refused(*roots: Path, **options: object) -> str:
    with pytest.raises(BadInput) as error:
        report(roots, Path("out"), ReportOptions(**options))  # type: ignore[arg-type]
    assert not Path("out").exists()
    assert str(error.value).isprintable()
    return str(error.value)


def test_a_root_without_results_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert "no such run folder" in refused(tmp_path / "nowhere")
    assert "contains no run" in refused(tmp_path)
    assert "every launch failed; the first: rank 1 failed" in refused(make_failures(tmp_path / "failed"))
    trials = tmp_path / "run" / "trials.jsonl"
    trials.parent.mkdir()
    trials.write_text("")
    assert "contains no run with results" in refused(tmp_path / "run")
    trials.write_text("not json\n")
    assert "trials.jsonl:1: left out: not a result" in refused(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formats": ("docx",)}, "--format: 'docx' is not one of html, figures"),
        ({"width": "poster"}, "--width: 'poster' is not one of column, page"),
        ({"width": "column"}, "--width requires --figures"),
        ({"by": "flavour"}, "--by: no trial has a setting 'flavour'"),
        ({"datasets": ("mnist",)}, "--datasets: no run has 'mnist'; there are mlp, imdb"),
    ],
)
def test_unknown_options_are_refused(runs: Path, options: dict[str, object], words: str) -> None:
    assert words in refused(runs, **options)


@pytest.mark.parametrize(("library", "wished"), [("matplotlib", ["--figures"]), ("jinja2", [])])
def test_a_missing_library_is_one_line_and_leaves_nothing_behind(
    runs: Path,
    library: str,
    wished: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    ended = called(capsys, "report", runs / "comm", "--out", "out", *wished)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.count("\n") == 1 and f"{library}: pip install" in ended.err
    assert not Path("out").exists()
    ended = called(capsys, "report", runs / "comm", "--out", "out", "--format", "csv,tex,md,txt,json")
    assert (ended.code, ended.err) == (0, "")


def test_the_page_needs_no_matplotlib(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = called(capsys, "report", runs / "comm", "--out", "out", "--format", "html")
    assert (ended.code, ended.err) == (0, "")
    assert 'role="img"' in Path("out/report.html").read_text(encoding="utf-8")


def test_a_path_that_cannot_be_written_is_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not be written"):
        report([runs / "comm"], tmp_path / "file", ReportOptions(formats=("txt",)))


def test_reports_and_predictions_need_no_torch(runs: Path) -> None:
    commands = [
        ["report", str(runs / "comm"), "--format", "html,csv", "--out", "out"],
        ["predict", str(runs / "scale"), "--network", "nvlink4", "--what-if"],
    ]
    code = WITHOUT_TORCH.format(commands)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 2] True", done.stderr
    assert "has no profile of one rank" in done.stderr
