"""`explain` of any run ends with the next command; several runs of one machine inform each other."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from scalescope.diagnose import step_facts
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.finding import Diagnosis
from scalescope.diagnose.step_facts import StepFacts
from scalescope.errors import BadInput
from scalescope.report import analyzed_run
from scalescope.report.section import Section
from scalescope.results.ledger import LedgerEntry
from scalescope.results.run import Run, load_run
from scalescope.results.run_record import RunEnd, read_run_record, write_run_record
from scalescope.studies.runs.stored_runs import explain_together
from scalescope.studies.stored import explain, present
from tests.builders.calling import called
from tests.builders.runs import MODEL, VERBS, make_failures, make_runs
from tests.builders.steps import halves_of
from tests.builders.studies import comm, scale, train
from tests.simulated.launcher import CostModel, FakeLauncher

from .recording import RecordingWatcher, ask, ask_benchmark

pytestmark = pytest.mark.usefixtures("without_page")
SLOW_INPUT = CostModel(fixed_s=0.010, per_sample_s=0.001, input_s={1: 0.030})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("explained") / "runs")


def words_of(sections: tuple[Section, ...]) -> str:
    parts = []
    for section in sections:
        parts += [section.title or "", *section.lines, *(finding.text for finding in section.findings)]
        parts += [cell for row in (section.table.rows if section.table else ()) for cell in row]
    return "\n".join(parts)


@pytest.mark.parametrize("verb", VERBS)
def test_every_run_ends_with_a_command_and_not_with_what_cannot_be_told(made: Path, verb: str) -> None:
    sections = explain(made / verb)
    last = sections[-1].commands[-1]
    assert last.argv[0] == "scalescope"
    assert len([section for section in sections if section.lines or section.table]) > 1
    assert "no scaling to explain" not in words_of(sections)


def test_comm_tells_what_gradients_would_take_and_memory_what_limits_the_batch(made: Path) -> None:
    text = words_of(explain(made / "comm"))
    assert "What that means for training" in text and "124 million" in text
    limits = next(section for section in explain(made / "memory") if section.title == "What limits the batch")
    assert "take most" in limits.lines[0]


def test_tune_shows_what_won_and_what_did_not(made: Path) -> None:
    sections = explain(made / "tune")
    table = next(section.table for section in sections if section.table)
    remarks = {row[0]: row[table.columns.index("remark")] for row in table.rows}
    assert remarks["precision bf16"] == "recommended"
    levers = next(section.table for section in sections if (section.title or "").startswith("Levers"))
    assert levers is not None
    assert {row[0]: row[-1] for row in levers.rows}["fused_optimizer True"] == "slower"


def test_a_failed_run_shows_why_and_what_to_do(tmp_path: Path) -> None:
    sections = explain(make_failures(tmp_path / "failed"))
    assert "no luck" in words_of(sections)
    assert sections[-1].commands


def test_the_parts_of_a_step_are_shown_and_the_scaling_waterfall_continues_from_them(
    monkeypatch: pytest.MonkeyPatch, made: Path
) -> None:
    monkeypatch.setattr(step_facts, "step_waterfall", halves_of)
    text = words_of(explain(made / "train"))
    assert "the GPU waits" in text and "idle: after a synchronization" in text
    text = words_of(explain(made / "scale"))
    assert "· idle: after a synchronization" in text
    assert "Lost before the second rank" in text and "Lost by more ranks" in text


def test_runs_of_one_machine_are_explained_together(tmp_path: Path) -> None:
    asked = {"world_size": [1, 2], "batch_size": 16, "repeats": 3}
    runs = [str(tmp_path / name) for name in ("alone", "comm")]
    scale(ask("scale", output_dir=runs[0], **asked), FakeLauncher(MODEL), RecordingWatcher())
    _without_collectives(Path(runs[0]))
    network = ask_benchmark(
        "comm", output_dir=runs[1], collective="all_reduce", max_bytes="16M", world_size=2
    )
    comm(network, FakeLauncher(MODEL), RecordingWatcher())
    alone = words_of(explain(Path(runs[0])))
    together = words_of(explain_together([Path(path) for path in runs]))
    assert "communication-bound" not in alone
    assert "communication-bound" in together
    for path in runs:
        assert f"{path}: " in together


def test_of_runs_together_the_next_step_is_that_of_their_first_finding(tmp_path: Path) -> None:
    loader = {"batch_size": 10, "num_workers": 0}
    models = {"slow": SLOW_INPUT, "fast": CostModel(fixed_s=0.010)}
    for seed, (name, model) in enumerate(models.items()):
        asked = ask("train", output_dir=str(tmp_path / name), seed=seed, **loader)
        train(asked, FakeLauncher(model), RecordingWatcher())
    sections = explain_together([tmp_path / name for name in models])
    findings = next(section.findings for section in sections if section.findings)
    assert findings[0].text.startswith("input-bound")
    assert sections[-1].commands[0].argv == findings[0].commands[0].argv


def test_a_run_is_diagnosed_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("train", "scale"):
        calls: list[Run] = []

        def counting(
            run: Run,
            steps: tuple[StepFacts, ...],
            ledger: tuple[LedgerEntry, ...],
            calls: list[Run] = calls,
        ) -> Diagnosis:
            calls.append(run)
            return diagnose(run, steps, ledger)

        monkeypatch.setattr(analyzed_run, "diagnose", counting)
        report = present(load_run(made / verb))
        report.explain()
        for write in report.files.values():
            write()
        assert len(calls) == 1


def test_a_run_that_finished_nothing_is_continued_with_more_time(tmp_path: Path) -> None:
    train(ask("train", output_dir=str(tmp_path / "run")), FakeLauncher(MODEL), RecordingWatcher())
    (line,) = (tmp_path / "run" / "trials.jsonl").read_text().splitlines()
    stopped = {**json.loads(line), "status": "interrupted", "stopped_by": "budget", "ranks": []}
    (tmp_path / "run" / "trials.jsonl").write_text(f"{json.dumps(stopped)}\n")
    record = read_run_record(tmp_path / "run")
    end = RunEnd(why="budget", missing=1, budget_s=30.0)
    write_run_record(tmp_path / "run", dataclasses.replace(record, end=end))
    (following,) = explain(tmp_path / "run")[-1].commands
    assert following.argv == ("scalescope", "resume", str(tmp_path / "run"), "--budget", "60s")


def test_damaged_results_are_named_with_their_line(made: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(made / "train", damaged)
    for lines, others in (("{}\n", ""), ("{}\n}{\n", "1 more line")):
        (damaged / "trials.jsonl").write_text(lines)
        with pytest.raises(BadInput, match=rf"damaged.*{damaged}/trials.jsonl:1: .*{others}"):
            explain(damaged)


def _without_collectives(path: Path) -> None:
    lines = (path / "trials.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["settings"]["benchmark"] != "comm"]
    (path / "trials.jsonl").write_text("".join(kept))


def test_runs_of_different_machines_are_explained_apart(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    shutil.copytree(made / "comm", other)
    machine = load_run(other).results[0].environment_id
    trials = (other / "trials.jsonl").read_text().replace(machine, "another-machine")
    (other / "trials.jsonl").write_text(trials)
    sections = explain_together([made / "scale", other])
    assert "different machines" in words_of(sections)
    assert sum(bool(section.commands) for section in sections) == 2


def test_stored_checks_are_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = tmp_path / "check.json"
    warning = {"level": "warn", "subject": "governor", "text": "powersave", "advice": "use performance"}
    stored.write_text(json.dumps({"checks": [warning]}))
    ended = called(capsys, "explain", stored)
    assert ended.code == 0
    assert "use performance" in ended.out and "scalescope check" in ended.out


@pytest.mark.parametrize(
    ("name", "helps"),
    [("nowhere", "scalescope list"), (".", "scalescope list"), ("latest", "scalescope run")],
)
def test_what_is_not_a_run_is_refused_with_a_command_that_helps(
    tmp_path: Path, name: str, helps: str
) -> None:
    with pytest.raises(BadInput, match=helps):
        explain(tmp_path / name)
