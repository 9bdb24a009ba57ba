"""Published cases, read as the tool would read them."""

import dataclasses
from pathlib import Path
from typing import Any

from scalescope.catalog.workloads.mlp import Mlp
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.finding import Diagnosis
from scalescope.experiment.explanations import at_per_rank_batch, single_rank_baseline
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.run import Run
from tests.builders.results import make_result, make_trial
from tests.builders.topologies import dgx_h100, environment_of, over_pcie

# Published step times of two V100 over PCIe: MLP 4096 → 3 × 4096 → 2048, buckets of 50 MB, 256 samples a GPU.
V100_ONE_S, V100_TWO_S = 0.0076, 0.0414
V100_MLP = Mlp(input_dim=4096, hidden_dim=4096, num_layers=3, output_dim=2048)


def on_gpus(**settings: object) -> Trial:
    return make_trial(strategy="ddp", **settings).replace(device="cuda", backend="nccl")


def result(trial: Trial, step_s: float, gradient_bytes: int, buckets: tuple[int, ...]) -> Result:
    made = make_result(trial, [[step_s] * 10 for _ in range(trial.world_size)])
    ranks = [
        dataclasses.replace(
            rank,
            device=f"cuda:{rank.rank}",
            counters={**rank.counters, "gradient_bytes": gradient_bytes},
            samples={**rank.samples, "bucket_bytes": list(map(float, buckets))},
        )
        for rank in made.ranks
    ]
    return dataclasses.replace(made, ranks=ranks)


def diagnosed(*results: Result, environment: dict[str, Any] | None = None) -> Diagnosis:
    return diagnose(Run(path=Path("published"), environment=environment or {}, results=results, warnings=()))


def v100_buckets() -> tuple[int, ...]:
    """A bucket closes once it reaches the cap, and the last layers' gradients are ready first."""
    buckets, filling = [], 0
    for inputs, outputs in reversed(V100_MLP.layer_widths):
        filling += 4 * inputs * outputs
        if filling >= 50e6:
            buckets.append(filling)
            filling = 0
    return (*buckets, *([filling] if filling else []))


def test_two_v100_over_pcie_are_bound_by_bandwidth_far_below_pcie_and_not_by_latency() -> None:
    buckets = v100_buckets()
    assert [round(size / 1e6) for size in buckets] == [101, 67, 67]
    two = on_gpus(world_size=2, batch_size=256)
    by_rule = {
        finding.rule: finding
        for finding in diagnosed(
            result(single_rank_baseline(two), V100_ONE_S, sum(buckets), buckets),
            result(two, V100_TWO_S, sum(buckets), buckets),
            environment=environment_of({"here": over_pcie()}),
        ).findings
    }
    bandwidth = by_rule["communication-bound by bandwidth"]
    assert "58 % of what PCIe 3 ×16 should carry" in bandwidth.claim and "at most" in bandwidth.claim
    assert "network slower than its hardware" not in by_rule
    rate = next(item.value for item in bandwidth.evidence if item.name == "bus bandwidth")
    assert isinstance(rate, float) and 6e9 < rate < 8e9  # a little over half of 12 GB/s
    assert "communication-bound by latency" not in by_rule
    assert "negative scaling" in by_rule


def test_ag_news_on_four_ranks_is_dominated_by_communication() -> None:
    """25 ms of compute and 45 ms of synchronisation for 8 samples a rank; one rank takes 32 ms for all 32."""
    four = on_gpus(world_size=4, global_batch_size=32)
    sent = (11_000_000, (11_000_000,))
    findings = diagnosed(
        result(single_rank_baseline(four), 0.0322, *sent),
        result(single_rank_baseline(at_per_rank_batch(four)), 0.025, *sent),
        result(four, 0.070, *sent),
    ).findings
    assert findings[0].rule.startswith("communication-bound")
    negative = next(finding for finding in findings if finding.rule == "negative scaling")
    assert "4 ranks are slower than one (0.46×)" in negative.claim


def on_two_nodes(step_s: float, environment: dict[str, Any]) -> Diagnosis:
    """Four H100 on two nodes send 400 MB in 10 ms of compute and what the network takes."""
    four = on_gpus(world_size=4, batch_size=64)
    buckets = (100_000_000,) * 4
    spread = result(four, step_s, sum(buckets), buckets)
    ranks = [
        dataclasses.replace(rank, host="ab"[rank.rank // 2], device=f"cuda:{rank.rank % 2}")
        for rank in spread.ranks
    ]
    return diagnosed(
        result(single_rank_baseline(four), 0.010, sum(buckets), buckets),
        dataclasses.replace(spread, ranks=ranks),
        environment=environment,
    )


def test_two_nodes_far_below_their_cards_have_a_slow_network_if_their_links_are_known() -> None:
    known_links = environment_of({"a": dgx_h100(2), "b": dgx_h100(2)})
    slow = on_two_nodes(0.110, known_links).findings[0]  # 6 GB/s over 800 Gbit/s
    assert slow.rule == "network slower than its hardware"
    assert "2 cards" in slow.claim and "topo.h" in slow.claim
    usual = on_two_nodes(0.018, known_links)  # 75 GB/s
    assert "network slower than its hardware" not in {finding.rule for finding in usual.findings}
    diagnosis = on_two_nodes(0.110, environment_of({"a": dgx_h100(2), "b": None}))
    assert "network slower than its hardware" not in {finding.rule for finding in diagnosis.findings}
    (unknown,) = [
        outcome for outcome in diagnosis.abstentions if outcome.rule == "network slower than its hardware"
    ]
    assert "GPUs of b" in unknown.missing
