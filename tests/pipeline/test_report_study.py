"""`report` from run folders to files, and one line for what cannot be shown."""

import csv
import html
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.cli import app
from scalescope.errors import BadInput, CannotRun, StorageError
from scalescope.report.render import drawing, page
from scalescope.results.run import load_run
from scalescope.studies.report import FORMATS, ReportOptions, page_of, report
from tests.builders.runs import VERBS, make_failures, make_runs

FIGURES = {
    "imdb_epoch_time_detailed", "imdb_speedup_efficiency", "imdb_throughput", "imdb_accuracy",
    "mlp_speedup_efficiency", "mlp_throughput", "scaling", "waterfall", "collectives", "memory", "levers",
    "steps",
}  # fmt: skip
CHAPTERS = ("verdict", "findings", "scaling", "data", "collectives", "steps", "memory", "levers", "trials")
MOST_BYTES = 3_000_000
WITHOUT = "import sys; sys.modules[{!r}] = None; from scalescope.cli.app import main; main(sys.argv[1:])"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="module")
def made(runs: Path) -> Path:
    out = runs.parent / "out"
    report([runs], out, ReportOptions(formats=FORMATS))
    return out


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Everything in the table of all configurations."""
    text = (folder / "tables" / "comprehensive_summary.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def test_every_figure_is_there_in_every_format(made: Path) -> None:
    written = {path.name for path in (made / "figures").iterdir()}
    assert written >= {f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg", "pdf")}


def test_figure_files_are_written_when_they_are_asked_for(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folders = {}
    for name, flags in {"plain": [], "figures": ["--figures"]}.items():
        with pytest.raises(SystemExit) as leaving:
            app.main(["report", str(runs / "comm"), "--out", str(tmp_path / name), *flags])
        assert leaving.value.code == 0
        folders[name] = {path.name for path in (tmp_path / name).iterdir()}
    assert folders["plain"] == {"report.html", "tables", "performance_report.txt", "report.json"}
    assert folders["figures"] - folders["plain"] == {"figures"}
    assert "<svg" in (tmp_path / "plain" / "report.html").read_text()


def test_every_table_is_there(made: Path) -> None:
    assert {path.name for path in (made / "tables").iterdir()} >= {
        "comprehensive_summary.csv", "summary_table.tex", "summary_table.md"
    }  # fmt: skip
    rows = rows_of(made)
    assert {row["dataset"] for row in rows} == {"mlp", "imdb"}
    assert any(row["validation_accuracy"] for row in rows)


def test_the_page_has_every_chapter_and_stays_small(made: Path) -> None:
    text = (made / "report.html").read_text()
    assert [name for name in CHAPTERS if f'<section id="{name}"' not in text] == []
    assert len(text.encode()) < MOST_BYTES


def test_the_text_and_the_data_name_every_run(made: Path) -> None:
    text = (made / "performance_report.txt").read_text()
    data = json.loads((made / "report.json").read_text())
    assert set(data["runs"]) == set(VERBS)
    assert all(f"{verb}\n\n" in text for verb in VERBS)


def test_the_same_runs_make_the_same_report(runs: Path, made: Path, tmp_path: Path) -> None:
    report([runs], tmp_path / "again", ReportOptions(formats=("html", "csv", "tex", "md", "txt", "json")))
    for name in ("report.html", "tables/summary_table.tex", "performance_report.txt", "report.json"):
        assert (tmp_path / "again" / name).read_bytes() == (made / name).read_bytes()


def test_the_report_of_one_run_is_written_into_its_folder(runs: Path) -> None:
    written = report([runs / "comm"], None, ReportOptions(formats=("txt",)))
    assert written.files == (runs / "comm" / "performance_report.txt",)


def test_a_root_is_reported_below_itself(runs: Path) -> None:
    written = report([runs], None, ReportOptions(formats=("csv",)))
    assert written.files == (runs / "report" / "tables" / "comprehensive_summary.csv",)


def test_an_unexplained_loss_is_not_shown_as_none(made: Path) -> None:
    text = (made / "performance_report.txt").read_text()
    of_training = text.partition("train\n\n")[2].partition("comm\n\n")[0]
    assert "its cause was not measured" in of_training
    assert "No loss of speed was found" not in of_training


def test_runs_with_the_same_name_are_listed_by_path(tmp_path: Path) -> None:
    roots = [make_runs(tmp_path / name, ["comm"]) for name in ("a", "b")]
    report(roots, tmp_path / "out", ReportOptions(formats=("json",)))
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(data["runs"]) == {str(root / "comm") for root in roots}


def test_only_the_data_sets_asked_for(runs: Path, tmp_path: Path) -> None:
    report([runs], tmp_path, ReportOptions(formats=("csv", "html"), datasets=("imdb",)))
    rows = rows_of(tmp_path)
    assert {row["dataset"] for row in rows} == {"imdb"}
    assert "mlp: throughput" not in (tmp_path / "report.html").read_text()


def test_figures_of_a_column_are_narrower(runs: Path, tmp_path: Path) -> None:
    for width in ("column", "page"):
        report([runs / "comm"], tmp_path / width, ReportOptions(formats=("figures",), width=width))
    svg = {
        width: (tmp_path / width / "figures" / "collectives.svg").read_text() for width in ("column", "page")
    }
    assert 'width="252pt"' in svg["column"] and 'width="518.4pt"' in svg["page"]


def test_a_title_and_a_setting_to_overlay(runs: Path, tmp_path: Path) -> None:
    report([runs / "scale"], tmp_path, ReportOptions(formats=("html",), title="<My> title", by="precision"))
    text = (tmp_path / "report.html").read_text()
    assert "<h1>&lt;My&gt; title</h1>" in text
    assert "batch 16, precision fp32" in text


def test_failed_runs_are_listed_next_to_finished_ones(tmp_path: Path) -> None:
    make_failures(make_runs(tmp_path, ["comm"]) / "failed")
    report([tmp_path], tmp_path / "out", ReportOptions(formats=("html",)))
    assert "no luck" in (tmp_path / "out" / "report.html").read_text()


def test_a_broken_line_is_a_warning_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = make_runs(tmp_path, ["comm"]) / "comm"
    with (folder / "trials.jsonl").open("a") as stream:
        stream.write('{"broken": \n')
    written = report([folder], tmp_path / "out", ReportOptions(formats=("txt",)))
    assert len(written.warnings) == 1 and "left out" in written.warnings[0]


def refused(*roots: Path, **options: object) -> str:
    with pytest.raises(BadInput) as error:
        report(roots, Path("out"), ReportOptions(**options))  # type: ignore[arg-type]
    assert not Path("out").exists()
    assert str(error.value).isprintable()
    return str(error.value)


def test_a_root_without_runs_is_refused(tmp_path: Path) -> None:
    assert "no such run folder" in refused(tmp_path / "nowhere")
    assert "holds no run" in refused(tmp_path)


def test_an_empty_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trials.jsonl").write_text("")
    assert "holds no run with results" in refused(tmp_path / "run")


def test_a_broken_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trials.jsonl").write_text("not json\n")
    assert "trials.jsonl:1: left out: not a result" in refused(tmp_path / "run")


def test_a_run_of_failures_alone_is_refused_with_the_first(tmp_path: Path) -> None:
    assert "every launch failed; the first: rank 1 failed" in refused(make_failures(tmp_path / "run"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formats": ("docx",)}, "--format: 'docx' is not one of html, figures"),
        ({"width": "poster"}, "--width: 'poster' is not one of column, page"),
        ({"width": "column"}, "--width is about figure files; add --figures"),
        ({"by": "flavour"}, "--by: no trial has a setting 'flavour'"),
        ({"datasets": ("mnist",)}, "--datasets: no run has 'mnist'; there are mlp, imdb"),
    ],
)
def test_unknown_options_are_refused(runs: Path, options: dict[str, object], words: str) -> None:
    assert words in refused(runs, **options)


def test_a_refusal_is_one_line_and_exit_code_2(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as leaving:
        app.main(["report", str(runs), "--format", "docx", "--out", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert (leaving.value.code, out) == (2, "")
    assert err.startswith("scalescope: --format") and err.count("\n") == 1


def test_the_command_prints_the_paths_of_its_files(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as leaving:
        app.main(["report", str(runs / "comm"), "--format", "html,txt", "--open", "--out", str(out)])
    assert leaving.value.code == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{out}: 2 files", f"Report: {out / 'report.html'}"]
    assert opened == [str(out / "report.html")]


@pytest.mark.parametrize(
    ("module", "function", "formats"),
    [
        (drawing, "_matplotlib", ("figures",)),
        (drawing, "_matplotlib", ("html",)),
        (page, "_jinja", ("html",)),
    ],
)
def test_a_missing_library_leaves_nothing_behind(
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    function: str,
    formats: tuple[str, ...],
) -> None:
    def missing() -> None:
        raise CannotRun("not installed")

    monkeypatch.setattr(module, function, missing)
    with pytest.raises(CannotRun):
        report([runs], tmp_path / "out", ReportOptions(formats=formats))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_is_one_line_and_exit_code_3(runs: Path, tmp_path: Path, library: str) -> None:
    code = WITHOUT.format(library)
    arguments = ["report", str(runs), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1 and f"{library}: pip install" in done.stderr
    without = ["--format", "csv,tex,md,txt,json"]
    done = subprocess.run([sys.executable, "-c", code, *arguments, *without], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_cannot_be_written_is_one_line(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not be written"):
        report([runs / "comm"], tmp_path / "file", ReportOptions(formats=("txt",)))


def test_reports_need_no_torch(runs: Path, tmp_path: Path) -> None:
    code = WITHOUT.format("torch")
    arguments = ["report", str(runs / "scale"), "--format", "html,csv", "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_runs_without_results_are_named_once(tmp_path: Path) -> None:
    root = make_runs(tmp_path / "runs", ["comm"])
    for name in ("one", "two"):
        make_failures(root / name)
    report([root], tmp_path / "out", ReportOptions(formats=("html",)))
    text = (tmp_path / "out" / "report.html").read_text()
    assert text.count("two, one.") == 1


def test_a_broken_summary_is_left_out_of_the_report(tmp_path: Path) -> None:
    folder = make_runs(tmp_path, ["comm"]) / "comm"
    (folder / "results.json").write_text('{"value": NaN}')
    report([folder], tmp_path / "out", ReportOptions(formats=("json",)))
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"] == {"comm": None}


def test_every_command_of_the_page_can_be_pasted_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_runs(tmp_path / "my proj ünï & 'co'", ["scale", "comm"])
    out = tmp_path / "out"
    report([root], out, ReportOptions(formats=("html",)))
    monkeypatch.chdir(root)
    pages = [(out / "report.html").read_text(), page_of(load_run(Path("scale")))]
    for text in pages:
        commands = re.findall(r'(?:<code>|<p class="command">)(scalescope .*?)</', text)
        assert len(commands) > 4
        files = [
            Path(word)
            for command in commands
            for word in shlex.split(html.unescape(command))
            if word.endswith(".yaml")
        ]
        assert len(files) > 2
        assert all(file.is_absolute() and file.is_file() for file in files)
