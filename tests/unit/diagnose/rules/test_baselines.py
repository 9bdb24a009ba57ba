"""Rules about what a speedup is held against, about settings, and about launches that differ."""

import dataclasses
from typing import Any

import pytest

from scalescope.diagnose.facts import Facts
from scalescope.diagnose.rules.exchange import unused_parameters_rule
from scalescope.diagnose.rules.measuring import unfair_baseline_rule, unstable_rule, weak_as_strong_rule
from scalescope.experiment.explanations import single_rank_baseline
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.facts import abstention, evidence_of, facts_from, finding, levers, make_facts, measured
from tests.builders.results import make_configuration, make_trial


def test_only_plain_training_on_one_rank_is_a_fair_baseline() -> None:
    cause = finding(unfair_baseline_rule(make_facts(ranks=4, baseline_ranks=2)))
    assert evidence_of(cause) == {"baseline": "2 ranks"}
    assert cause.share == 0.0
    cause = finding(unfair_baseline_rule(make_facts()))
    assert evidence_of(cause) == {"baseline": "one rank in the wrapper"}
    alone = make_configuration(single_rank_baseline(make_facts().trial), 0.1)
    assert unfair_baseline_rule(make_facts(one_rank=alone)) is None
    assert unfair_baseline_rule(make_facts(baseline_ranks=2)) is None


# weak scaling is not a faster job


def two(batch: int, **settings: Any) -> Trial:
    return make_trial(strategy="ddp", world_size=2, batch_size=batch, **settings)


def on_ranks(batch: int, alone_s: float, together_s: float, **settings: Any) -> list[Result]:
    """One rank and two with that batch for each."""
    trial = two(batch, **settings)
    return [*measured(single_rank_baseline(trial), alone_s), *measured(trial, together_s)]


def about(batch: int, *results: list[Result], **settings: Any) -> Facts:
    wanted = two(batch, **settings).trial_id
    return next(facts for facts in facts_from(*results) if facts.trial.trial_id == wanted)


def test_a_job_that_gets_no_faster_though_ranks_do_more_is_named() -> None:
    facts = about(100, on_ranks(100, 0.10, 0.11), on_ranks(50, 0.08, 0.09))
    cause = finding(weak_as_strong_rule(facts))
    assert evidence_of(cause) == {
        "weak": pytest.approx(1.82, abs=0.005),
        "strong": pytest.approx(1.11, abs=0.005),
    }
    assert cause.advice[0].command == (
        "scalescope scale /run/experiment.yaml --world-size 1,2 --global-batch-size 100"
    )
    abstained = abstention(weak_as_strong_rule(about(100, on_ranks(100, 0.10, 0.11))))
    assert abstained.missing == "the throughput of 2 ranks on one rank's batch"
    assert abstained.command.endswith("--world-size 1,2 --global-batch-size 100")


def test_other_jobs_than_a_weak_one_that_gets_no_faster_are_no_finding() -> None:
    assert weak_as_strong_rule(about(100, on_ranks(100, 0.10, 0.11), on_ranks(50, 0.05, 0.06))) is None
    assert weak_as_strong_rule(about(100, on_ranks(100, 0.10, 0.13), on_ranks(50, 0.08, 0.09))) is None
    trial = make_trial(strategy="ddp", world_size=2, global_batch_size=100)
    (facts,) = facts_from(measured(single_rank_baseline(trial), 0.1), measured(trial, 0.05))
    assert weak_as_strong_rule(facts) is None
    # The other format comes first in the run, and is five times as fast.
    others = [on_ranks(batch, 0.02, 0.022, precision="bf16") for batch in (100, 50)]
    same_kind = [on_ranks(100, 0.10, 0.10), on_ranks(50, 0.05, 0.05)]
    assert weak_as_strong_rule(about(100, *others, *same_kind)) is None


# settings and launches


LOOKING = {"find_unused_parameters": True, "static_graph": False}


def test_looking_for_unused_parameters_is_advised_against_unless_it_is_done_once() -> None:
    cause = finding(unused_parameters_rule(make_facts(changes=LOOKING)))
    assert levers(cause) == ["find_unused_parameters=no"]
    assert unused_parameters_rule(make_facts(changes={**LOOKING, "static_graph": True})) is None
    assert unused_parameters_rule(make_facts()) is None


def test_launches_that_differ_are_a_finding() -> None:
    facts = make_facts()
    differing = make_configuration(facts.trial, 0.1, 0.12, 0.14)
    cause = finding(
        unstable_rule(dataclasses.replace(facts, row=dataclasses.replace(facts.row, configuration=differing)))
    )
    assert "launches differ by " in cause.claim
    assert [evidence.name for evidence in cause.evidence] == ["doubt 1"]
    assert cause.share == 0.0
    assert unstable_rule(make_facts()) is None
