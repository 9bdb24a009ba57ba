"""Tables for papers and spreadsheets: nothing in them is taken for a command."""

import csv
import io

import pytest

from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.render.markdown import escaped, table_text
from scalescope.report.render.tables import (
    before_after,
    comprehensive_csv,
    summary_table,
    tables,
    tex,
    to_tex,
)
from scalescope.report.section import Table
from scalescope.results.run import Run
from tests.builders.known_runs import make_run, make_trials
from tests.builders.runs import HOSTILE

TABLE = Table(columns=("what", "ranks"), rows=(("[a] & b", "2"), ("* 50 %", "—")), left=frozenset(("what",)))


def report_input(*runs: Run, **options: object) -> ReportInput:
    return ReportInput(tuple(AnalyzedRun(run) for run in runs), "title", **options)  # type: ignore[arg-type]


def cells(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_tex_table_has_the_rules_of_booktabs() -> None:
    lines = to_tex(TABLE).splitlines()
    assert lines[1:4] == [r"\begin{tabular}{lr}", r"\toprule", r"what & ranks \\"]
    assert lines[5:7] == [r"{[}a] \& b & 2 \\", r"{*} 50 \% & -- \\"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a_b^c~d", r"a\_b\textasciicircum{}c\textasciitilde{}d"),
        ("$x$ #1", r"\$x\$ \#1"),
        ("two\n lines", "two lines"),
        ("é ü ç ß Å", r"""\'{e} \"{u} \c{c} \ss{} \r{A}"""),
        ("名 \x07 ƀ", "? ? ?"),
        ("2.5× ÷ µs", r"2.5$\times$ $\div$ $\mu$s"),
        ('"<|>"', r"''\textless{}\textbar{}\textgreater{}''"),
    ],
)
def test_tex_prints_every_letter(text: str, expected: str) -> None:
    assert tex(text) == expected


def test_tex_holds_plain_letters_only() -> None:
    assert tex("".join(map(chr, range(0x2FF)))).isascii()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("*_`[x](y)", r"\*\_\`\[x\](y)"),
        ("two\nlines", "two lines"),
        ("$1$ ~2~", r"\$1\$ \~2\~"),
    ],
)
def test_markdown_takes_nothing_for_a_mark(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_a_markdown_table_keeps_the_alignment_of_its_columns() -> None:
    assert table_text(TABLE).splitlines()[:2] == ["| what | ranks |", "| :--- | ---: |"]


@pytest.mark.parametrize("value", ["=1+1", "\r=1"])
def test_no_cell_of_the_csv_is_a_formula(value: str) -> None:
    (trial,) = make_trials(batch_size=16)
    hostile = trial.replace(data_note=value)
    (row,) = cells(comprehensive_csv(report_input(make_run([hostile], launches=1))))
    assert row["setting_data_note"] == "'" + value.replace("\r", "\n")


def test_the_csv_holds_figures_in_si_units_and_all_settings() -> None:
    run = make_run(make_trials(world_size=[1, 2], batch_size=16, explained=True), launches=3)
    rows = cells(comprehensive_csv(report_input(run)))
    (two,) = [row for row in rows if row["setting_world_size"] == "2"]
    assert float(two["step_time_s"]) == pytest.approx(0.0081, rel=0.02)
    assert 1.0 < float(two["speedup"]) < 2.0
    assert float(two["samples_per_s_low"]) < float(two["samples_per_s"]) < float(two["samples_per_s_high"])
    (baseline,) = [row for row in rows if row["setting_strategy"] == "single"]
    assert baseline["speedup"] == ""


def test_the_summary_has_a_column_for_what_was_varied() -> None:
    run = make_run(make_trials(optimizer=["sgd", "adamw"]), launches=1)
    assert "optimizer" in summary_table(report_input(run)).columns


def test_before_and_after_compare_one_job_with_one_change() -> None:
    run = make_run(make_trials(world_size=2, batch_size=16, optimizer=["sgd", "adamw"]), launches=2)
    compared = before_after(report_input(run))
    assert compared is not None
    ((workload, ranks, changed, *_),) = compared.rows
    assert (workload, ranks, changed) == ("mlp", "2", "optimizer sgd → adamw")


def test_two_batches_are_no_before_and_after() -> None:
    assert (
        before_after(report_input(make_run(make_trials(world_size=2, batch_size=[16, 64]), launches=1)))
        is None
    )


def test_tables_hold_only_the_data_sets_asked_for() -> None:
    run = make_run(
        [*make_trials(), *make_trials(workload="paced", input_dim=None, hidden_dim=None)], launches=1
    )
    assert [row["dataset"] for row in cells(comprehensive_csv(report_input(run, datasets=("mlp",))))] == [
        "mlp"
    ]


def test_hostile_names_reach_every_table_harmlessly() -> None:
    trials = [
        trial.replace(note=HOSTILE + trial.settings["optimizer"])
        for trial in make_trials(optimizer=["sgd", "adamw"])
    ]
    made = tables(report_input(make_run(trials, launches=1)))
    assert set(made) >= {"comprehensive_summary.csv", "summary_table.tex", "summary_table.md"}
    assert "<script" not in made["summary_table.md"]
    widths = {line.replace("\\|", "").count("|") for line in made["summary_table.md"].splitlines()}
    assert len(widths) == 1
