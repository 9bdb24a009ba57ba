"""Rules about what ranks exchange beside gradients, and about the cores of one rank."""

import dataclasses
from typing import Any

import pytest

from scalescope.analysis.training.model_facts import ModelFacts
from scalescope.diagnose.step_facts import StepFacts
from scalescope.diagnose.step_rules.host import threads_rule
from scalescope.diagnose.step_rules.ranks import buffers_rule, sync_batch_norm_rule
from scalescope.results.other_load import OtherLoad
from tests.builders.facts import ON_GPUS, evidence_of, finding, levers, make_curve
from tests.builders.steps import loader, step_facts, with_loads

# buffers


def broadcasting(size: int | None = 12_000, *, on: bool = True, ranks: int = 2, **known: Any) -> StepFacts:
    changes = {"broadcast_buffers": on}
    return step_facts(ranks=ranks, changes=changes, model=ModelFacts(buffer_bytes=size), **known)


def test_buffers_that_travel_before_every_step_are_counted() -> None:
    cause = finding(buffers_rule(broadcasting()))
    assert evidence_of(cause) == {"buffers": 12_000}
    assert cause.claim == "11.7 KiB of buffers are sent from rank 0 before every forward pass."
    assert "400 B of buffers" in finding(buffers_rule(broadcasting(400))).claim
    assert cause.share == 0.0
    assert levers(cause) == ["broadcast_buffers=no"]
    assert buffers_rule(broadcasting(on=False)) is None
    for none in (0, None):
        assert buffers_rule(broadcasting(none)) is None
    assert buffers_rule(broadcasting(ranks=1)) is None
    cause = finding(buffers_rule(broadcasting(4_000_000, exchange=make_curve(1e-4, 1e8))))
    assert cause.cost_s == pytest.approx(0.04, rel=0.02)
    assert cause.estimated
    little = finding(buffers_rule(broadcasting(8, exchange=make_curve(1e-4, 1e8))))
    assert (little.share, little.estimated) == (0.0, False)


# SyncBatchNorm


def normalizing(layers: int | None = 53, *, ranks: int = 2, batch_size: int = 32, **known: Any) -> StepFacts:
    return step_facts(
        ranks=ranks, settings={"batch_size": batch_size}, model=ModelFacts(sync_batch_norms=layers), **known
    )


def test_each_layer_exchanges_twice() -> None:
    cause = finding(sync_batch_norm_rule(normalizing(exchange=make_curve(1e-4, 1e12))))
    assert evidence_of(cause)["exchanges"] == 106
    assert cause.cost_s == pytest.approx(0.0106, rel=0.01)
    assert cause.estimated
    (advice,) = cause.advice
    assert (advice.argv, advice.changes_job) == ((), True)
    cause = finding(sync_batch_norm_rule(normalizing()))
    assert (cause.share, cause.estimated) == (0.0, False)
    assert finding(sync_batch_norm_rule(normalizing(batch_size=4))).advice == ()


@pytest.mark.parametrize(
    "facts",
    [
        normalizing(0),
        normalizing(None),
        normalizing(ranks=1),
        normalizing(2, exchange=make_curve(1e-4, 1e12)),
    ],
    ids=["none", "unknown", "one rank", "little"],
)
def test_layers_that_do_not_wait_are_no_finding(facts: StepFacts) -> None:
    assert sync_batch_norm_rule(facts) is None


# threads


def crowded(
    *,
    threads_per_rank: int = 4,
    cores: int | None = 2,
    wait: float | None = 0.4,
    load: OtherLoad | None = None,
    ranks: int = 1,
    **known: Any,
) -> StepFacts:
    facts = step_facts(
        ranks=ranks,
        settings={"threads_per_rank": threads_per_rank, **known.pop("settings", {})},
        model=ModelFacts(rank_cores=cores),
        **known,
    )
    return with_loads(facts, load or OtherLoad(rank_waits=None if wait is None else (wait,)))


def test_threads_that_wait_for_cores_cost_that_time() -> None:
    cause = finding(threads_rule(crowded()))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.04), True)
    assert evidence_of(cause) == {
        "threads": 4,
        "loader processes": 0,
        "cores": 2,
        "waiting for a core": pytest.approx(0.4),
    }
    assert levers(cause) == ["threads_per_rank=2"]


def test_a_loader_s_processes_need_cores_as_well() -> None:
    fed = {"settings": {"num_workers": 4}, "loading": loader(workers=4)}
    cause = finding(threads_rule(crowded(threads_per_rank=2, **fed)))
    assert levers(cause) == ["num_workers=2"]
    assert threads_rule(crowded(threads_per_rank=2, wait=0.08, **fed)) is None
    assert threads_rule(crowded(threads_per_rank=2, cores=6, **fed)) is None
    facts = dataclasses.replace(crowded(cores=None), machine={"cores": 3})
    assert levers(finding(threads_rule(facts))) == ["threads_per_rank=3"]


@pytest.mark.parametrize(
    "facts",
    [
        crowded(threads_per_rank=2),
        crowded(wait=0.02),
        crowded(wait=None),
        crowded(cores=None),
        crowded(ranks=2),
        crowded(load=OtherLoad(cores=2, other_cores=1.0, rank_waits=(0.4,))),
        crowded(changes=ON_GPUS),
    ],
    ids=["enough cores", "no waiting", "unknown", "cores unknown", "several ranks", "other load", "GPU"],
)
def test_threads_that_have_cores_are_no_finding(facts: StepFacts) -> None:
    assert threads_rule(facts) is None
