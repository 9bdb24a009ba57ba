"""Diagnosis of training commands: no rule fails, and none advises what a command refuses."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.scaling.waterfall import CONTENTION
from scalescope.diagnose.advice import advise, batch_name, this_job
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.facts import facts_of
from scalescope.diagnose.finding import Diagnosis, Finding
from scalescope.diagnose.step_facts import StepFacts, step_facts_of
from scalescope.experiment.explanations import with_preloaded_input, without_communication
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.run import Run
from tests.builders.commands import command_launches, make_command

REFUSED = ("--strategy", "--precision", "--optimizer", "--steps-per-epoch", "--batch-size", "--lr", "--data")
LOADER = {"observed/loader": 1, "observed/loader_workers": 0, "host/input_s": 0.010}
HOST = {"host/forward_s": 0.004, "host/backward_s": 0.006, "host/optimizer_s": 0.002}
GARBAGE = {"gc/pause_s": 0.05, "gc/longest_s": 0.01}
BATCHES = "torchrun --nproc-per-node={world_size} train.py --batch-size {batch_size}"


def silent(trial: Trial) -> Trial:
    ablation = without_communication(with_preloaded_input(trial))
    assert ablation is not None
    return ablation


def run_of(*launches: Iterable[Result], **environment: Any) -> Run:
    results = tuple(launch for group in launches for launch in group)
    return Run(path=Path("/run"), environment=environment, results=results, warnings=())


def scaled(ratio: float = 1.0, *, counters: dict[str, Any] | None = None, **settings: Any) -> Run:
    """One rank, two ranks, and those without communication; communication takes long."""
    one, two = make_command(**settings), make_command(ranks=2, **settings)
    rest = {"gradient_bytes": 40_000_000, **(counters or {})}
    return run_of(
        command_launches(one, (0.020, 0.0201), wrapper="none", **rest),
        command_launches(two, (0.060 * ratio, 0.0601 * ratio), **rest),
        command_launches(silent(two), (0.024, 0.0241), **rest),
    )


RUNS = {
    "nothing known": run_of(command_launches(make_command(observed_batch_size=None), (0.02,), samples=None)),
    "two ranks": scaled(),
    "tokens": scaled(observed_unit="tokens"),
    "batches": scaled(command=BATCHES, batch_size=32),
    "host facts": scaled(counters=HOST | GARBAGE),
    "loader": run_of(
        command_launches(make_command(observed_loader=True), (0.030, 0.0301), **HOST, **LOADER),
        command_launches(with_preloaded_input(make_command(observed_loader=True)), (0.020, 0.0201), **HOST),
    ),
    "fsdp1": run_of(
        command_launches(make_command(observed_wrapper="fsdp1"), (0.020, 0.0201), wrapper="none"),
        command_launches(make_command(ranks=2, observed_wrapper="fsdp1"), (0.060, 0.0601), wrapper="fsdp1"),
    ),
    "on a GPU": run_of(
        command_launches(make_command(device="cuda", backend="nccl"), (0.02, 0.0201), **HOST | GARBAGE),
        command_launches(make_command(ranks=2, device="cuda", backend="nccl"), (0.03, 0.0301), **HOST),
    ),
}


def finding_of(diagnosis: Diagnosis, rule: str) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.rule == rule)


@pytest.mark.parametrize("name", RUNS)
def test_no_rule_fails_and_no_advice_has_a_flag_that_a_command_refuses(name: str) -> None:
    diagnosis = diagnose(RUNS[name])
    assert [rule for rule in diagnosis.abstentions if rule.error] == []
    words = [word for finding in diagnosis.findings for a in finding.advice for word in a.argv]
    assert name == "batches" or not [word for word in words if word.startswith(REFUSED)]
    assert "memory" not in words


def test_input_that_is_waited_for_is_found_and_garbage_collection_too() -> None:
    finding = finding_of(diagnose(RUNS["loader"]), "input-bound")
    assert finding.cost_s == pytest.approx(0.010, rel=0.02)
    (levers,) = [a.argv[-1] for a in finding.advice if a.argv[-2:-1] == ("--levers",)][:1]
    assert levers == "num_workers=2"
    assert finding_of(diagnose(RUNS["host facts"]), "garbage collection").advice


def test_batches_that_no_loader_makes_need_an_edit() -> None:
    rest = {**HOST, "host/input_s": 0.010}
    run = run_of(command_launches(make_command(observed_loader=False), (0.030, 0.0301), **rest))
    (advice,) = finding_of(diagnose(run), "input-bound").advice
    assert not advice.argv and "DataLoader" in advice.label


def test_what_one_term_holds_together_is_at_most_communication() -> None:
    (facts,) = facts_of(RUNS["fsdp1"])
    assert not facts.communication_is_measured
    assert facts.communication_lost == pytest.approx(2 * (0.060 - 0.020) / 0.060, rel=1e-2)


def test_a_claim_about_contention_names_what_is_part_of_it() -> None:
    run = scaled(counters={})
    (facts,) = facts_of(run)
    term = facts.term(CONTENTION)
    assert term is not None and term.includes == ("wrapper",)
    claim = finding_of(diagnose(run), "ranks slow each other down").claim
    assert "This includes the wrapper." in claim


def test_a_smaller_batch_is_not_taken_for_contention() -> None:
    settings = {"observed_global_batch_size": 64}
    one, two = make_command(**settings), make_command(ranks=2, **settings)
    run = run_of(
        command_launches(one, (0.020, 0.0201), samples=64, wrapper="none"),
        command_launches(two, (0.030, 0.0301)),
        command_launches(silent(two), (0.025, 0.0251)),
    )
    assert [rule.missing for rule in diagnose(run).abstentions if rule.rule == "ranks slow each other down"]


def step_facts(run: Run) -> StepFacts:
    return step_facts_of(run)[0]


def test_a_batch_is_a_setting_where_it_has_a_placeholder() -> None:
    facts = step_facts(RUNS["two ranks"])
    (advice,) = advise(facts, "a larger batch", batch_name(facts), 64)
    assert not advice.argv and "{batch_size}" in advice.label and advice.changes_job
    assert this_job(facts) == {"world_size": 2}
    facts = step_facts(RUNS["batches"])
    (advice,) = advise(facts, "a larger batch", batch_name(facts), 64)
    assert advice.argv[-1] == "batch_size=64"
    assert this_job(facts) == {"world_size": 2, "batch_size": 32}


def test_levers_without_an_edit_are_commands_and_others_lines_of_pytorch() -> None:
    facts = step_facts(RUNS["two ranks"])
    (advice,) = advise(facts, "copy while computing", "non_blocking", True)
    assert not advice.argv and "non_blocking=True" in advice.label
    assert advise(facts, "other numbers", "precision", "bf16")[0].argv[-1] == "precision=bf16"
    (accumulation,) = advise(facts, "exchange less often", "accumulation_steps")
    assert "no_sync" in accumulation.label and accumulation.changes_job
    assert advise(facts, "fuse", "compile", "default")[0].argv[-1] == "compile=default"
    assert advise(facts, "threads", "threads_per_rank", 2)[0].argv[-1] == "threads_per_rank=2"
    assert advise(facts, "threads", "threads_per_rank", 1) == ()


def test_configurations_are_named_by_what_was_counted_and_varied() -> None:
    facts = step_facts(RUNS["tokens"])
    assert facts.about == "2 ranks, 32 tokens"
    unknown = step_facts(RUNS["nothing known"])
    assert unknown.about == "1 rank, unknown batch"
    one, two = make_command(), make_command(vary={"lr": "1"})
    other = dataclasses.replace(two).replace(observed_batch_size=16)
    run = run_of(command_launches(one, (0.02,)), command_launches(other, (0.02,), samples=16))
    assert {name for facts in step_facts_of(run) for name, _ in facts.varied} == {"vary"}
