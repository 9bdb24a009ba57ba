"""Raw samples summarised in a few figures; what was not sampled stays unknown."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.launches import summarise
from scalescope.analysis.telemetry import (
    SlowedGpu,
    TelemetrySummary,
    network_errors,
    over_launches,
    telemetry_summary,
)
from scalescope.experiment.explanations import breakdown_of
from tests.builders.commands import make_command
from tests.builders.results import make_result, make_trial

_TWO_GPUS = {
    "samples": 3,
    "interval_s": 0.2,
    "gpus": {
        "a": {
            "utilization": [0.5, 0.7, 0.9],
            "memory_used_bytes": [1e9, 3e9, 2e9],
            "power_w": [100.0, 200.0, 300.0],
            "sm_clock_hz": [1.0e9, 1.2e9, 1.4e9],
            "temperature_c": [40.0, 50.0, 45.0],
            "slowdowns": {"power cap": 1.0},
            "power_limit_w": 400.0,
            "sm_clock_limit_hz": 2.0e9,
        },
        "b": {
            "utilization": [0.3],
            "memory_used_bytes": [2.5e9],
            "power_w": [600.0],
            "sm_clock_hz": [2.0e9],
            "temperature_c": [60.0],
            "slowdowns": {},
            "power_limit_w": 800.0,
            "sm_clock_limit_hz": 3.0e9,
        },
    },
    "cpu": {"host_utilization": 0.4, "rank_busy_cores": [1.0, 2.5]},
}


def test_figures_are_means_over_samples_but_memory_and_temperature_are_the_largest() -> None:
    summary = telemetry_summary(_TWO_GPUS)
    assert summary == TelemetrySummary(
        gpu_utilization=pytest.approx(0.6),
        gpu_memory_bytes=3e9,
        power_w=300.0,
        power_limit_w=600.0,
        sm_clock_hz=pytest.approx(1.4e9),
        sm_clock_limit_hz=2.5e9,
        temperature_c=60.0,
        host_utilization=0.4,
        rank_busy_cores=1.75,
        slowdowns=("power cap",),
        slowed_gpus=(
            SlowedGpu(host=None, uuid="a", reasons={"power cap": 1.0}, clock_share=pytest.approx(0.6)),
        ),
        problem=None,
    )
    assert summary.knows_gpu


def test_what_was_not_sampled_is_unknown() -> None:
    empty = {"samples": 1, "interval_s": 0.2, "gpus": {}, "asking_gpus_s": 0.1, "cpu": {}}
    for telemetry in ({}, {"samples": 0, "interval_s": 0.2}, empty):
        summary = telemetry_summary(telemetry)
        assert summary == TelemetrySummary()
        assert not summary.knows_gpu and not summary.throttled


def test_what_answers_in_part_is_known_in_part() -> None:
    summary = telemetry_summary(
        {"gpus": {"a": {"power_w": [10.0]}, "b": {"power_w": [30.0], "power_limit_w": 70.0}}}
    )
    assert summary == TelemetrySummary(power_w=20.0, power_limit_w=70.0)
    state = {"memory_used_bytes": [1e9], "sm_clock_hz": [1.2e9], "temperature_c": [50.0]}
    summary = telemetry_summary({"gpus": {"a": state}})
    assert summary == TelemetrySummary(gpu_memory_bytes=1e9, sm_clock_hz=1.2e9, temperature_c=50.0)
    assert summary.knows_gpu
    assert (summary.gpu_utilization, summary.power_w) == (None, None)
    idle = {"host_utilization": 0.0, "rank_busy_cores": [0.0, 0.0]}
    summary = telemetry_summary({"cpu": idle, "gpus": {"a": {"utilization": [0.0]}}})
    assert summary == TelemetrySummary(host_utilization=0.0, rank_busy_cores=0.0, gpu_utilization=0.0)
    assert summary.knows_gpu
    assert telemetry_summary({"samples": 0, "gpu_problem": "NVML says no"}) == TelemetrySummary(
        problem="NVML says no"
    )


def test_slowdowns_count_from_a_tenth_of_the_looks_on_any_gpu() -> None:
    gpus = {
        "a": {"slowdowns": {"power cap": 0.1, "sync boost": 0.09}},
        "b": {"slowdowns": {"power cap": 0.02, "power brake": 0.11, "hardware slowdown": 0.05}},
    }
    assert telemetry_summary({"gpus": gpus}).slowdowns == ("power cap", "power brake")


def test_only_heat_and_a_failing_supply_throttle() -> None:
    hot = {"thermal (software)", "thermal (hardware)", "hardware slowdown", "power brake"}
    for name in (*hot, "power cap", "sync boost"):
        assert telemetry_summary({"gpus": {"a": {"slowdowns": {name: 1.0}}}}).throttled is (name in hot)
        assert not telemetry_summary({"gpus": {"a": {"slowdowns": {name: 0.05}}}}).throttled


def test_over_launches_figures_are_means_but_memory_and_temperature_the_largest() -> None:
    first = TelemetrySummary(gpu_utilization=0.5, power_w=100.0, gpu_memory_bytes=5e9, temperature_c=40.0)
    second = TelemetrySummary(gpu_utilization=1.0, host_utilization=0.0, temperature_c=70.0)
    third = TelemetrySummary(rank_busy_cores=3.0, host_utilization=0.2, gpu_memory_bytes=2e9)
    assert over_launches([first, second, third]) == TelemetrySummary(
        gpu_utilization=0.75,
        power_w=100.0,
        rank_busy_cores=3.0,
        host_utilization=0.1,
        gpu_memory_bytes=5e9,
        temperature_c=70.0,
    )
    assert over_launches([TelemetrySummary()] * 2) == over_launches([]) == TelemetrySummary()


def test_over_launches_slowdowns_add_up_and_the_first_problem_is_kept() -> None:
    launches = [
        TelemetrySummary(slowdowns=("power cap",)),
        TelemetrySummary(slowdowns=("thermal (hardware)", "power cap"), problem="first"),
        TelemetrySummary(problem="second"),
    ]
    summary = over_launches(launches)
    assert (summary.slowdowns, summary.problem) == (("power cap", "thermal (hardware)"), "first")
    assert summary.throttled


def _configuration(*telemetries: dict[str, Any], **settings: Any) -> Configuration:
    """One launch with each of these, on two ranks whose matrix product makes 1 GFLOP/s."""
    trial = make_trial(world_size=2, **settings)
    results = [
        dataclasses.replace(
            make_result(trial, [[0.1] * 10] * 2, launch=launch, calibration=[(1e9, 1e9)] * 2),
            telemetry=telemetry,
        )
        for launch, telemetry in enumerate(telemetries)
    ]
    (configuration,) = configurations(results)
    return configuration


def test_a_configuration_summarises_the_telemetry_of_its_launches() -> None:
    other = {"cpu": {"host_utilization": 0.8}}
    summary = _configuration(_TWO_GPUS, other, {}).telemetry
    assert summary.host_utilization == pytest.approx(0.6)
    assert (summary.power_w, summary.rank_busy_cores) == (300.0, 1.75)


def test_launches_that_heat_slowed_down_are_called_unstable() -> None:
    hot = {"gpus": {"a": {"slowdowns": {"thermal (hardware)": 0.5}}}}
    capped = {"gpus": {"a": {"slowdowns": {"power cap": 1.0}}}}
    instability = "the GPU was throttled by heat or its power supply in 2 of 3 launches"
    assert instability in _configuration(hot, capped, hot).instabilities()
    assert _configuration(capped, {}).instabilities() == []


def test_model_operations_a_second_are_those_of_one_rank_beside_their_share_of_a_matrix_product() -> None:
    configuration = _configuration({}, input_dim=10, hidden_dim=20, num_layers=1, output_dim=5)
    operations = 6 * (10 * 20 + 20 * 5) - 2 * 10 * 20
    assert configuration.model_flops_per_s == pytest.approx(
        operations * 10 / 0.1
    )  # ten samples a step and rank
    assert configuration.bare_product_share == pytest.approx(operations * 100 / 1e9)
    (configuration,) = configurations([make_result(make_trial(), [[0.1] * 10])])
    assert configuration.model_flops_per_s is not None
    assert configuration.bare_product_share is None


def test_operations_that_ranks_counted_stand_in_for_a_formula(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def build(): pass\n")
    trial = make_trial(world_size=2, workload=f"{tmp_path}/own.py:build")
    result = make_result(trial, [[0.1] * 10] * 2, calibration=[(1e9, 1e9)] * 2)
    (unknown,) = configurations([result])
    assert (unknown.model_flops_per_s, unknown.bare_product_share) == (None, None)
    counted = [
        dataclasses.replace(rank, counters={**rank.counters, "model_flops_per_sample": 5e6})
        for rank in result.ranks
    ]
    result = dataclasses.replace(result, ranks=counted)
    assert summarise(result).flops_per_sample == 5e6
    (known,) = configurations([result])
    assert known.model_flops_per_s == pytest.approx(5e8)
    assert known.bare_product_share == pytest.approx(0.5)


def _recorded(gpu: str = "NVIDIA H200", **counters: float) -> Configuration:
    """A command on a GPU with steps of 100 ms, and what its recorded steps counted."""
    trial = make_command(device="cuda")
    counted = {"model_flops": 3e13, "device_flops": 4e13, "device_flops/bf16": 4e13, "linked_product_s": 1.0}
    counted |= {"unlinked_product_s": 0.0, "matmul_flops_per_s/bf16": 6e14, **counters}
    timed, recorded = (make_result(t, [[0.1] * 10]) for t in (trial, breakdown_of(trial)))
    timed.ranks[0].counters["gpu"] = gpu
    recorded.ranks[0].counters.update(counted)
    recorded.ranks[0].samples["parts/step_s"] = [0.1]
    (configuration,) = configurations([timed, recorded])
    return configuration


def test_mfu_hfu_and_the_share_of_a_bare_product_are_three_figures() -> None:
    configuration = _recorded()
    assert configuration.number_format == "bf16"
    assert configuration.model_flops_per_s == pytest.approx(3e14)
    assert configuration.mfu == pytest.approx(3e14 / 989e12)
    assert configuration.hfu == pytest.approx(4e14 / 989e12)
    assert configuration.bare_product_share == pytest.approx(0.5)
    unknown = _recorded(gpu="Some GPU")
    assert (unknown.mfu, unknown.hfu, unknown.bare_product_share) == (None, None, pytest.approx(0.5))


def test_operations_are_unknown_where_much_of_the_products_was_not_counted() -> None:
    assert _recorded(unlinked_product_s=0.04).mfu is not None
    configuration = _recorded(unlinked_product_s=0.06)
    assert (configuration.model_flops_per_s, configuration.mfu, configuration.hfu) == (None, None, None)


def _gpu(**slowdowns: float) -> dict[str, Any]:
    names = {"heat": "thermal (hardware)", "cap": "power cap"}
    return {
        "utilization": [0.5],
        "sm_clock_hz": [1.2e9],
        "sm_clock_limit_hz": 2e9,
        "slowdowns": {names[name]: share for name, share in slowdowns.items()},
    }


TWO_HOSTS = {
    "gpus": {"a": _gpu(cap=1.0)},
    "cpu": {"host_utilization": 0.2, "rank_busy_cores": [1.0]},
    "hosts": {
        "n1": {"gpus": {"a": _gpu(cap=1.0)}, "cpu": {"host_utilization": 0.2, "rank_busy_cores": [1.0]}},
        "n2": {
            "gpus": {"b": {**_gpu(heat=0.8), "utilization": [0.9]}},
            "cpu": {"host_utilization": 0.6, "rank_busy_cores": [3.0]},
            "infiniband": {"mlx5_0/1": {"symbol_error": 12}, "mlx5_1/1": {}},
        },
    },
}


def test_every_host_counts_and_a_slowed_gpu_is_named_with_its_host() -> None:
    summary = telemetry_summary(TWO_HOSTS)
    assert summary.gpu_utilization == pytest.approx(0.7)
    assert summary.host_utilization == pytest.approx(0.4)
    assert summary.rank_busy_cores == pytest.approx(2.0)
    assert [(slow.host, slow.uuid, dict(slow.reasons), slow.is_hot) for slow in summary.slowed_gpus] == [
        ("n1", "a", {"power cap": 1.0}, False),
        ("n2", "b", {"thermal (hardware)": 0.8}, True),
    ]
    assert summary.slowdowns == ("power cap", "thermal (hardware)")


def test_network_errors_are_those_of_each_port_and_host() -> None:
    assert network_errors(TWO_HOSTS) == {("n2", "mlx5_0/1"): {"symbol_error": 12}, ("n2", "mlx5_1/1"): {}}
    assert network_errors({"infiniband": {"mlx5_0/1": {"link_downed": 1}}}) == {
        (None, "mlx5_0/1"): {"link_downed": 1}
    }
    assert network_errors({"cpu": {}}) == {}


def test_over_launches_the_share_of_a_gpu_s_slowdown_is_the_mean() -> None:
    hot, cool = telemetry_summary(TWO_HOSTS), telemetry_summary({"hosts": {"n1": {}, "n2": {}}})
    mean = over_launches([hot, cool])
    assert [(slow.uuid, dict(slow.reasons)) for slow in mean.slowed_gpus] == [
        ("a", {"power cap": 0.5}),
        ("b", {"thermal (hardware)": 0.4}),
    ]
