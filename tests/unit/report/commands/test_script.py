"""How a command was measured, in sentences, and short names of jobs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.experiment.explanations import without_communication
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput, dataset_of
from scalescope.report.chapters import chapters_of
from scalescope.report.commands import command_name, job_name, script_sections, units_of
from scalescope.report.performance import performance_text
from scalescope.report.render.cells import plain_text
from scalescope.report.render.tables import tables
from scalescope.report.results_json import results_json
from scalescope.report.scaling.sections import next_after_scaling, scaling_sections
from scalescope.report.training.sections import training_sections
from scalescope.results.result import Result
from scalescope.results.run import Run
from tests.builders.commands import COMMAND, command_launch, command_launches, make_command
from tests.builders.results import make_configuration, make_result, make_trial

ONE, TWO = make_command(), make_command(ranks=2)
STEPS = (0.030, 0.0301)


def run_of(*launches: Iterable[Result]) -> Run:
    results = tuple(launch for group in launches for launch in group)
    return Run(path=Path("/run"), environment={}, results=results, warnings=())


def lines_of(run: Run) -> tuple[str, ...]:
    (section,) = script_sections(run)
    assert section.title == "How train.py was measured"
    return section.lines


def scaled(one: Any = ONE, two: Any = TWO, **rest: Any) -> Run:
    silent = without_communication(two)
    assert silent is not None
    return run_of(
        command_launches(one, (0.020, 0.0201), wrapper="none", **rest),
        command_launches(two, STEPS, **rest),
        command_launches(silent, (0.022, 0.0221), **rest),
    )


def unknown() -> Run:
    trials = [trial.replace(observed_batch_size=None) for trial in (ONE, TWO)]
    return run_of(*(command_launches(trial, STEPS, samples=None) for trial in trials))


def test_steps_and_samples_and_the_kind_of_scaling() -> None:
    counters = {"observed/samples_from": "first input of GPT"}
    trials = [t.replace(observed_unit="tokens", observed_batch_size=16384) for t in (ONE, TWO)]
    assert lines_of(scaled(*trials, samples=16384, **counters)) == (
        "Step: optimizer steps of AdamW.",
        "Samples: 16,384 tokens per rank and step (first input of GPT); the same on every rank at all world "
        "sizes: weak scaling.",
    )


def test_samples_that_all_ranks_share_are_strong_scaling() -> None:
    one, two = (make_command(ranks=ranks, observed_global_batch_size=64) for ranks in (1, 2))
    run = run_of(command_launches(one, STEPS, samples=64), command_launches(two, STEPS, samples=32))
    assert lines_of(run)[1].endswith("the same over all ranks together at all world sizes: strong scaling.")


def test_several_events_and_passes_make_a_step() -> None:
    counters = {"observed/events_per_step": 2, "observed/micro_batches": 4}
    line = lines_of(run_of(command_launches(ONE, STEPS, **counters)))[0]
    assert line == "Step: optimizer steps of AdamW; 2 of them make a step; 4 forward passes per step."


def test_a_step_that_the_script_marks_needs_no_optimizer() -> None:
    counters = {"observed/step_from": "scalescope.step()"}
    assert lines_of(run_of(command_launches(ONE, STEPS, **counters)))[0] == "Step: scalescope.step()."


def test_what_was_left_out_what_remains_and_what_was_skipped() -> None:
    counters = {"suppressed/wandb.log": 3, "observed/skipped_steps": 2}
    tables = {"remaining_communication": [{"what": "broadcast of buffers"}]}
    lines = lines_of(run_of(command_launches(ONE, STEPS, tables=tables, **counters)))
    assert lines[2:] == (
        "Not sent while measuring, per launch: wandb.log 3 times; --allow-writes sends it.",
        "Still sent in launches without communication: broadcast of buffers.",
        "GradScaler skipped 2 steps of a launch.",
    )


def test_other_workloads_have_no_such_section() -> None:
    assert script_sections(run_of([make_result(make_trial(), [[0.1]])])) == ()


def test_unknown_samples_are_said_once_with_the_flag_that_helps() -> None:
    run = unknown()
    text = plain_text(scaling_sections(run))
    assert text.count("--samples-per-step") == 1
    assert "steps/s" in text and "×" not in text
    advice = next_after_scaling(AnalyzedRun(run))
    assert advice is not None and not advice.argv and "--samples-per-step" in advice.label


def test_samples_of_no_kind_of_scaling_are_shown_as_they_are() -> None:
    two = TWO.replace(observed_batch_size=20)
    run = run_of(command_launches(ONE, STEPS, samples=32), command_launches(two, STEPS, samples=20))
    assert "32 samples on 1 rank, 20 samples on 2 ranks" in lines_of(run)[1]


def test_scaling_names_the_script_its_unit_and_what_is_merged() -> None:
    run = scaled(*(trial.replace(observed_unit="tokens") for trial in (ONE, TWO)))
    text = plain_text(scaling_sections(run))
    assert "weak scaling · train.py on cpu · tokens per rank" in text
    assert "tokens/s" in text and "samples/s" not in text
    assert "contention with wrapper" in text
    assert "Not separable: contention, wrapper: the script has no unwrapped form on several ranks." in text
    assert "1-rank wrapper" not in text and "from batch" not in text


def test_merged_terms_are_in_the_json() -> None:
    (row,) = [row for row in results_json(scaled())["results"]["scaling"] if row["world_size"] == 2]
    contention = row["waterfall"]["terms"][0]
    assert contention["includes"] == ["wrapper"] and "unwrapped" in contention["merged_because"]


def test_the_json_has_the_name_and_the_whole_command() -> None:
    (entry,) = results_json(run_of(command_launches(ONE, STEPS)))["results"]["training"]
    assert (entry["workload"], entry["command"], entry["unit"]) == ("train.py", COMMAND, "samples")
    assert entry["precision"] is None and entry["samples_per_step"] == 32


def test_the_json_of_unknown_samples_has_none() -> None:
    entry = results_json(unknown())["results"]["training"][0]
    assert (entry["samples_per_s"], entry["batch_size"], entry["global_batch_size"]) == (None, None, None)


def test_train_shows_one_rank_and_several() -> None:
    for trial in (ONE, TWO):
        text = plain_text(training_sections(run_of(command_launches(trial, STEPS))))
        assert "=== Training Benchmark (train.py) ===" in text
        assert f"Command          : {COMMAND}" in text
        assert "Config           : optimizer AdamW of the script" in text


def test_train_without_samples_shows_steps() -> None:
    text = plain_text(training_sections(unknown()))
    assert "steps/s (samples per step are not known)" in text and "Measured samples" not in text


def test_every_chapter_of_the_page_takes_commands() -> None:
    for run in (scaled(), unknown()):
        report_input = ReportInput(analyzed_runs=(AnalyzedRun(run),), title="a command")
        chapters = {chapter.name: chapter for chapter in chapters_of(report_input)}
        assert f"Command: {COMMAND}" in chapters["command"].sections[0].lines
        assert "train.py" in tables(report_input)["summary_table.md"]
        assert "train.py" in performance_text(run)


def test_no_chapter_shows_losses_of_a_command_without_communication() -> None:
    run = scaled()
    for result in run.results:
        for record in result.ranks:
            record.samples["loss"] = [12345.5] * 10
    report_input = ReportInput(analyzed_runs=(AnalyzedRun(run),), title="a command")
    ablated = [member for member in AnalyzedRun(run).measured if member.trial.is_ablation]
    assert ablated and all(not launch.losses for member in ablated for launch in member.launches)
    assert "12,345" not in plain_text(s for c in chapters_of(report_input) for s in c.sections)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --nproc-per-node={world_size} train.py --lr 1", "train.py"),
        ("python -u 'my scripts/pre train.py' --config c.py", "pre train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 -m package.train", "package.train"),
        ("torchrun -m package.train --lr 1", "package.train"),
        ("accelerate launch --num_processes 2 nlp.py", "nlp.py"),
        ("/opt/bin/pretrain --gpus 2", "pretrain"),
        ("python 'train.py", "python 'train.py"),
    ],
)
def test_a_command_is_named_by_its_script(command: str, name: str) -> None:
    assert command_name(command) == name


def test_other_jobs_are_named_by_their_workload() -> None:
    assert job_name(make_trial()) == "mlp"
    assert job_name(make_command()) == "train.py"


def test_a_command_is_its_own_data() -> None:
    (configuration,) = configurations([command_launch(make_command(), 0.1)])
    assert dataset_of(configuration) == "train.py"


def test_units_are_those_that_commands_count() -> None:
    (tokens,) = configurations([command_launch(make_command(observed_unit="tokens"), 0.1)])
    (unknown,) = configurations([command_launch(make_command(), 0.1, samples=None)])
    assert units_of([tokens]) == "tokens"
    assert units_of([tokens, unknown]) == "steps or tokens"
    assert units_of([make_configuration(make_trial(), 0.1)]) == units_of([]) == "samples"
