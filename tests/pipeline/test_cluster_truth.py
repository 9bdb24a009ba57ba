"""The waterfall and the findings recover what was put into a simulated cluster."""

from dataclasses import replace
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from tests.builders.studies import scale
from tests.simulated.cluster.model import Network
from tests.simulated.cluster.truth import LossTruth, truth_of
from tests.simulated.launcher import ClusterModel, FakeLauncher

from .recording import RecordingWatcher, ask, summary_of

# A step computes for 50 ms. The exchange of all gradients takes a fifth of that on 8 ranks, and on 64 nearly
# as long as a step.
BUSY = ClusterModel(
    fixed_s=0.010,
    per_sample_s=0.0008,
    wrapper_s=0.001,
    contention_s=0.002,
    jitter_s=0.0005,
    launch_noise=0.001,
    network_noise=0.005,
    recording_s=0.002,
    slowdown=0.05,
    gradient_bytes=1_000_000_000,
)
SLOW = replace(BUSY, slow_rank=5, slow_s=0.008)
_NEAR = 0.01  # of a step


class Measured:
    """A run of `scale` on so many ranks of a cluster, and the truth about it."""

    def __init__(self, model: ClusterModel, ranks: int, **asked: Any) -> None:
        self.watcher = RecordingWatcher()
        settings = {"steps_per_epoch": 42, "warmup_steps": 12, **(asked or {"batch_size": 50})}
        launcher = FakeLauncher(model, model.machine(ranks))
        report = scale(ask("scale", world_size=[1, ranks], **settings), launcher, self.watcher)
        results = summary_of(report.path)["results"]
        (self.row,) = [row for row in results["scaling"] if row["world_size"] == ranks]
        self.findings = {finding["rule"]: finding for finding in results["findings"]}
        self.truth: LossTruth = truth_of(model, self._trained(ranks))

    def _trained(self, ranks: int) -> Trial:
        return next(
            trial
            for trial, _ in self.watcher.launched
            if (trial.benchmark, trial.world_size) == ("train", ranks) and not trial.ablations
        )

    @property
    def terms(self) -> dict[str, float]:
        return {term["name"]: term["time_s"] for term in self.row["waterfall"]["terms"]}


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        (SLOW, 8),
        (replace(BUSY, slow_rank=1, slow_s=0.008), 2),
        (SLOW, 64),
        (replace(BUSY, jitter_s=0.002, burst_probability=0.002, burst_s=0.02), 32),
    ],
    ids=["slow rank", "slow rank of two", "slow rank of many", "jitter and stalls"],
)
def test_every_term_is_recovered(model: ClusterModel, ranks: int) -> None:
    run = Measured(model, ranks)
    assert run.terms == pytest.approx(run.truth.terms(), abs=_NEAR * run.truth.step_s)
    waterfall = run.row["waterfall"]
    assert waterfall["delivered"] + sum(term["lost"] for term in waterfall["terms"]) == pytest.approx(ranks)
    if (model, ranks) == (SLOW, 64):  # the network is busy for longer than the rank is late
        assert run.terms["stragglers"] < 0.1 * SLOW.slow_s
        assert run.terms["random skew"] == 0.0
        assert waterfall["slowest_rank"]["rank"] == 5


def test_a_slow_rank_is_named() -> None:
    finding = Measured(replace(SLOW, gradient_bytes=100_000_000), 16).findings["straggling rank"]
    assert finding["evidence"]["rank"]["value"] == 5


def test_jitter_of_many_ranks_is_random_skew_and_no_slow_rank() -> None:
    findings = Measured(replace(BUSY, jitter_s=0.003, gradient_bytes=100_000_000), 32).findings
    assert "random skew between ranks" in findings
    assert "straggling rank" not in findings


def test_quiet_ranks_have_neither() -> None:
    findings = Measured(replace(BUSY, jitter_s=0.0002), 16).findings
    assert not {"random skew between ranks", "straggling rank"} & set(findings)


def test_a_slow_network_card_is_named() -> None:
    model = replace(BUSY, network=Network(card_bytes_per_s=200e9, slow_node=2, slow_by=4.0))
    finding = Measured(model, 32).findings["unequal links"]
    assert "node node2's link" in finding["evidence"]["slow links"]["value"]


def test_a_batch_for_all_ranks_and_a_loader_have_their_terms() -> None:
    model = replace(BUSY, input_s=0.008, input_alone_s=0.002)
    run = Measured(model, 8, num_workers=1, global_batch_size=400)
    truth = run.truth.terms()
    assert set(run.terms) == set(truth)
    for name in ("smaller batch", "input"):
        assert run.terms[name] == pytest.approx(truth[name], abs=_NEAR * run.truth.step_s)


def test_a_thousand_ranks_can_be_planned() -> None:
    watcher = RecordingWatcher()
    launcher = FakeLauncher(BUSY, BUSY.machine(1024))
    report = scale(
        ask("scale", world_size=[1, 1024], batch_size=50, dry_run=True, output_dir=None), launcher, watcher
    )
    assert report.exit_code == 0
    assert launcher.launched == []
    assert len(launcher.nodes()) == 128
