"""Tables go into a paper as they are: pdflatex compiles them, whatever names are in them."""

import subprocess
from pathlib import Path

import pytest

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.render.tables import tables, to_tex
from scalescope.report.section import Table
from tests.builders.known_runs import make_run, make_trials
from tests.builders.runs import HOSTILE
from tests.speed import patience

pytestmark = pytest.mark.latex
DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\begin{document}
\input{table}
\end{document}
"""
EVERYTHING = "".join(map(chr, range(0x250)))
NAMES = (
    HOSTILE,
    EVERYTHING,
    "[3pt] first",
    "* first",
    r"\end{tabular}",
    r"\input{/etc/passwd}",
    "名前 😀",
    "%",
    "",
)


def compiled(table: str, folder: Path) -> bytes:
    """The document as PDF; a mistake in the table ends the compiler at once."""
    (folder / "table.tex").write_text(table, encoding="utf-8")
    (folder / "paper.tex").write_text(DOCUMENT, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=patience(120))
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    return (folder / "paper.pdf").read_bytes()


def test_the_tables_of_a_run_compile(tmp_path: Path) -> None:
    run = make_run(make_trials(world_size=[1, 2], batch_size=[8, 16], explained=True), launches=2)
    made = tables(ReportInput((AnalyzedRun(run),), "title"))
    assert compiled(made["summary_table.tex"], tmp_path).startswith(b"%PDF")


def test_before_and_after_compile(tmp_path: Path) -> None:
    run = make_run(make_trials(world_size=2, optimizer=["sgd", "adamw"]), launches=2)
    made = tables(ReportInput((AnalyzedRun(run),), "title"))
    assert compiled(made["before_after.tex"], tmp_path).startswith(b"%PDF")


@pytest.mark.parametrize("name", NAMES)
def test_no_name_breaks_a_table(tmp_path: Path, name: str) -> None:
    table = Table(columns=(name, "b"), rows=((name, name), (name, "1")), left=frozenset((name,)))
    assert compiled(to_tex(table), tmp_path).startswith(b"%PDF")


def test_hostile_settings_of_a_run_compile(tmp_path: Path) -> None:
    trials = make_trials(optimizer=["sgd", "adamw"])
    hostile = [trial.replace(note=f"{HOSTILE}{number}") for number, trial in enumerate(trials)]
    made = tables(ReportInput((AnalyzedRun(make_run(hostile, launches=1)),), "title"))
    assert compiled(made["summary_table.tex"], tmp_path).startswith(b"%PDF")
