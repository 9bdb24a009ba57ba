"""The worked examples of CONTRIBUTING.md appear wherever they should, though no other file names them."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest

from scalescope.analysis.memory.forecast import memory_rows
from scalescope.catalog.code_lines import ScriptContext
from scalescope.cli import app, front_page
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.facts import facts_of
from scalescope.errors import BadInput
from scalescope.experiment.expand import expand
from scalescope.report.chapters import chapters_of
from scalescope.report.memory.sections import memory_sections
from scalescope.report.section import Section
from scalescope.report.tuning.code import code_section
from scalescope.results.run import Run, load_run
from scalescope.studies.execution import run_study
from scalescope.studies.prepared import prepare
from scalescope.studies.report import ReportOptions, gather, page_of, report
from scalescope.studies.stored import explain, find_study, present, study_of
from scalescope.studies.tuning.levers import find_levers
from tests.builders.requests import ask
from tests.builders.studies import memory, scale, tune
from tests.extending.worked_examples import example_folders
from tests.pipeline.recording import RecordingWatcher
from tests.pipeline.recording import ask as request
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher
from tests.unit.extending import extended_by

_NO_OVERLAP = "communication is not overlapped"
# An all-reduce of the 4 MB of gradients takes 40 ms, and the whole of it adds to a step.
_MODEL = CostModel(exposed_comm_s={2: 0.04}, bytes_per_s=1e8)


@pytest.fixture(autouse=True)
def with_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with extended_by(example_folders()):
        yield


def _help(verb: str) -> str:
    ended = click.testing.CliRunner().invoke(app.app, [verb, "--help-all"], terminal_width=200)
    assert ended.exit_code == 0
    return ended.output


def _scaled(strategy: str) -> Run:
    """A stored run of two ranks of a strategy, through the fake launcher."""
    asked = request("scale", world_size=[1, 2], batch_size=50, repeats=3, strategy=strategy)
    path = scale(asked, FakeLauncher(_MODEL), RecordingWatcher()).path
    assert path is not None
    return load_run(path)


def _cells(sections: tuple[Section, ...]) -> set[str]:
    return {cell for section in sections if section.table for row in section.table.rows for cell in row}


@pytest.mark.parametrize("verb", ["train", "tune", "scale", "memory", "drift"])
def test_help_shows_the_lever_as_a_flag_and_the_strategy_as_a_choice(verb: str) -> None:
    text = _help(verb)
    assert "--clip-norm" in text
    assert "flat_ddp" in text.split("--strategy")[1].split("--")[0]


def test_a_plan_has_the_lever_and_the_strategy() -> None:
    trials = expand(ask(strategy="flat_ddp", world_size="2", clip_norm="1,2"), TWO_CORES).trials
    assert [(trial.strategy, trial.settings["clip_norm"]) for trial in trials] == [
        ("flat_ddp", 1.0),
        ("flat_ddp", 2.0),
    ]


@pytest.mark.parametrize("other", [{"strategy": "fsdp", "world_size": "2"}, {"strategy": "pipeline"}])
def test_the_lever_refuses_strategies_that_cut_gradients(other: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="clip_norm cannot be used with strategy"):
        expand(ask(clip_norm="1", **{"world_size": "2", **other}), TWO_CORES)


def test_the_lines_of_the_lever_go_between_backward_and_update() -> None:
    context = ScriptContext(device="cpu")
    lines = code_section({"clip_norm": (None, 1.0)}, context).code.splitlines()
    clipping = lines.index("    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    assert lines[clipping - 1] == "    loss.backward()" and lines[clipping + 1] == "    optimizer.step()"


def test_a_strategy_that_pytorch_does_not_have_is_said_to_be_ours() -> None:
    context = ScriptContext(device="cpu", world_size=2, strategy="flat_ddp")
    section = code_section({"strategy": ("ddp", "flat_ddp")}, context)
    assert section.code == "" and "exists in scalescope only" in section.lines[0]


def test_tune_tries_the_strategy_with_all_others() -> None:
    levers = find_levers(ask(world_size="2"), TWO_CORES, ("all",))
    tried = [candidate.value for candidate in levers.candidates if candidate.name == "strategy"]
    assert tried == ["flat_ddp", "scratch_ddp", "fsdp", "zero1"]  # a pipeline is another job


def test_tune_tries_the_lever_as_another_job() -> None:
    (candidate,) = find_levers(ask(), TWO_CORES, ("clip_norm",)).candidates
    assert (candidate.name, candidate.value, candidate.changes) == ("clip_norm", 1.0, "the job")


def test_tune_measures_and_reports_the_strategy() -> None:
    asked = request("tune", world_size=2, batch_size=50, budget="60s")
    report_of_tune = tune(asked, FakeLauncher(_MODEL), RecordingWatcher(), levers=("strategy=flat_ddp",))
    assert "strategy flat_ddp" in _cells(report_of_tune.sections)


def test_the_memory_forecast_follows_the_layout_of_the_strategy() -> None:
    made = request("memory", batch_size=4, world_size=2, strategy="flat_ddp")
    flags = {n: v for n, v in made.flags.items() if n not in ("steps_per_epoch", "warmup_steps")}
    asked = dataclasses.replace(made, benchmark="memory", flags=flags)
    path = memory(asked, FakeLauncher(_MODEL), RecordingWatcher()).path
    assert path is not None
    run = load_run(path)
    row = next(row for row in memory_rows(run.results) if not row.is_search)
    assert row.forecast is not None
    assert row.forecast.strategy == _MODEL.parameter_bytes  # the flat copy
    assert any(cell.startswith("at most ") for cell in _cells(memory_sections(run)))


def test_the_rule_finds_what_the_strategy_does_not_hide() -> None:
    run = _scaled("flat_ddp")
    (facts,) = facts_of(run)
    assert facts.exchange_s == pytest.approx(_MODEL.collective_time_s(4_000_000), rel=0.05)
    (finding,) = [finding for finding in diagnose(run).findings if finding.rule == _NO_OVERLAP]
    assert [advice.command.endswith("--levers strategy=ddp") for advice in finding.advice] == [True]
    assert any(_NO_OVERLAP in found.text for section in explain(run.path) for found in section.findings)


def test_the_rule_finds_nothing_where_the_exchange_is_hidden() -> None:
    hidden = CostModel(exposed_comm_s={2: 0.02}, bytes_per_s=1e8)
    asked = request("scale", world_size=[1, 2], batch_size=50, repeats=3)
    path = scale(asked, FakeLauncher(hidden), RecordingWatcher()).path
    assert path is not None
    assert _NO_OVERLAP not in {finding.rule for finding in diagnose(load_run(path)).findings}


def test_the_report_has_the_chapter_and_the_strategy_in_it() -> None:
    run = _scaled("flat_ddp")
    chapters = {chapter.name: chapter for chapter in chapters_of(gather([run.path], ReportOptions()))}
    assert {"flat_ddp", "single"} <= _cells(chapters["strategies"].sections)
    page = page_of(run)
    assert "fastest configuration of each strategy" in page
    assert _NO_OVERLAP in re.sub(r"<[^>]+>", "", page)  # terms in it are explained


def test_the_verb_is_listed_and_has_help() -> None:
    assert "drift" in front_page.verb_names()
    assert any(line.split()[:2] == ["drift", "Measure"] for line in front_page.help_text(100).splitlines())
    assert "--launcher" in _help("drift")  # it may be a job
    assert "--launcher" not in _help("run")


def test_the_verb_runs_and_its_stored_run_is_found_again() -> None:
    kind: Any = find_study("drift")
    asked = request("drift", world_size=2, strategy="flat_ddp", clip_norm=1, repeats=3)
    shown = run_study(prepare(kind(), asked), FakeLauncher(_MODEL), RecordingWatcher())
    assert shown.exit_code == 0
    assert shown.path is not None
    run = load_run(shown.path)
    assert {(r.trial.strategy, r.trial.settings["clip_norm"]) for r in run.results} == {("flat_ddp", 1.0)}
    assert isinstance(study_of(run), kind)
    assert present(run).sections == shown.sections
    (section,) = (section for section in shown.sections if (section.title or "").startswith("step time by"))
    assert section.lines[0].count("ms") == 3
    assert any("(flat_ddp, 2 ranks" in line for section in explain(shown.path) for line in section.lines)
    written = report([shown.path], Path("out"), ReportOptions()).files
    assert any("flat_ddp" in file.read_text() for file in written if file.suffix == ".csv")
