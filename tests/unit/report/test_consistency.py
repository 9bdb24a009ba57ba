"""Every part of a report says the same; each way of not doing so is seen."""

import dataclasses
from pathlib import Path

import pytest

from scalescope.analysis.statistics import Estimate
from scalescope.diagnose.finding import Diagnosis, Finding
from scalescope.report import consistency
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.consistency import disagreements
from scalescope.results.run import load_run
from tests.builders.known_runs import make_run, make_trials

_STORED = sorted((Path(__file__).parents[2] / "stored_runs").glob("*/trials.jsonl"))


@pytest.fixture
def scaled() -> AnalyzedRun:
    return AnalyzedRun(make_run(make_trials(world_size=[1, 2], batch_size=64, explained=True)))


@pytest.mark.parametrize("trials", _STORED, ids=lambda path: path.parent.name)
def test_reports_of_stored_runs_agree_with_themselves(trials: Path) -> None:
    run = load_run(trials.parent)
    assert run.results
    assert disagreements(AnalyzedRun(run)) == ()


def test_a_report_that_agrees_says_nothing(scaled: AnalyzedRun) -> None:
    assert disagreements(scaled) == ()
    assert consistency.consistency_section(scaled) == ()


def test_another_speedup_in_the_table_than_in_the_waterfall(scaled: AnalyzedRun) -> None:
    rows = [dataclasses.replace(row, speedup=Estimate(row.speedup.value + 0.1)) for row in scaled.rows]
    vars(scaled)["rows"] = tuple(rows)
    (line,) = disagreements(scaled)
    assert line.startswith("the table says ") and "2 ranks at batch 64" in line


def test_a_waterfall_that_does_not_add_up(scaled: AnalyzedRun) -> None:
    row = scaled.rows[-1]
    assert row.waterfall is not None
    waterfall = dataclasses.replace(row.waterfall, terms=row.waterfall.terms[:-1])
    vars(scaled)["rows"] = (dataclasses.replace(row, waterfall=waterfall),)
    assert "adds up to" in " ".join(disagreements(scaled))


def test_a_finding_that_costs_more_than_its_term(scaled: AnalyzedRun) -> None:
    row = scaled.rows[-1]
    assert row.waterfall is not None
    (term,) = (term for term in row.waterfall.terms if term.name == "communication")
    assert term.lost is not None
    claim = Finding(
        rule="slow network",
        claim="",
        lost=2.0 * term.lost.value,
        share=term.lost.value,
        terms=("communication",),
        trial_id=row.trial.trial_id,
    )
    vars(scaled)["diagnosis"] = Diagnosis(findings=(claim,))
    (line,) = disagreements(scaled)
    assert line.startswith("slow network costs ") and line.endswith("for communication.")


def test_a_finding_that_costs_more_than_the_step(scaled: AnalyzedRun) -> None:
    facts = scaled.steps[0]
    claim = facts.finding("input-bound", "", 1.5 * facts.step_s, trial_id=facts.trial.trial_id)
    vars(scaled)["diagnosis"] = Diagnosis(findings=(claim,))
    assert "of a step of" in " ".join(disagreements(scaled))


def test_findings_in_another_order_than_their_costs(scaled: AnalyzedRun) -> None:
    cheap, costly = (Finding(rule=f"{share}", claim="", lost=share, share=share) for share in (0.1, 0.3))
    vars(scaled)["diagnosis"] = Diagnosis(findings=(cheap, costly))
    assert disagreements(scaled) == ("findings are not sorted by cost.",)


def test_a_disagreement_is_stated(scaled: AnalyzedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (section,) = consistency.disagreement_section(["a is 1, b is 2."])
    assert section.lines == (
        "This report contradicts itself: a is 1, b is 2.",
        "This is a bug in scalescope; please report it.",
    )
