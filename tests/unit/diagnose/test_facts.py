"""Facts: which losses count, how sure they are, and how far a measured curve is believed."""

import dataclasses
from pathlib import Path

import pytest

from scalescope.analysis.comm.pairs import PairRow
from scalescope.analysis.scaling.waterfall import COMMUNICATION, CONTENTION, INPUT
from scalescope.analysis.statistics import Estimate
from scalescope.diagnose.facts import Facts, facts_of
from scalescope.experiment.explanations import single_rank_baseline
from scalescope.results.result import RankRecord
from scalescope.results.run import Run
from tests.builders.facts import facts_from, make_curve, make_facts, measured
from tests.builders.results import make_configuration, make_result, make_trial


def losing(share: float, *, sure: bool = True) -> Facts:
    """Two ranks that lose this share of a step by communication; the interval may include none at all."""
    low = share / 2.0 if sure else -share / 2.0
    return make_facts({COMMUNICATION: Estimate(share * 0.1, low * 0.1, 2 * share * 0.1)})


def test_a_loss_counts_in_ranks_from_a_share_that_depends_on_how_sure_it_is() -> None:
    assert losing(0.25).lost(COMMUNICATION) == pytest.approx(0.5)
    assert losing(0.02).lost(COMMUNICATION) == 0.0
    assert losing(0.04).lost(COMMUNICATION) == pytest.approx(0.08)
    assert losing(0.14, sure=False).lost(COMMUNICATION) == 0.0
    assert losing(0.16, sure=False).lost(COMMUNICATION) == pytest.approx(0.32)
    assert losing(0.2).is_sure(COMMUNICATION)
    assert not losing(0.2, sure=False).is_sure(COMMUNICATION)
    facts = make_facts({COMMUNICATION: Estimate(0.004)})
    assert not facts.is_sure(COMMUNICATION)
    assert facts.lost(COMMUNICATION) == 0.0
    assert make_facts({COMMUNICATION: Estimate(0.02)}).lost(COMMUNICATION) == pytest.approx(0.4)


def test_what_is_unknown_is_neither_lost_nor_doubted() -> None:
    facts = make_facts({COMMUNICATION: None})
    assert facts.lost(COMMUNICATION) is facts.lost(CONTENTION) is None
    assert facts.is_sure(COMMUNICATION) and facts.is_sure(CONTENTION)
    assert make_facts({COMMUNICATION: None, INPUT: None}).communication_lost is None


# the measured curve


def buckets_s(size: int, *, largest: int, bytes_per_s: float) -> tuple[float, ...] | None:
    curve = make_curve(0.0, bytes_per_s, largest)
    return make_facts(curve=curve, gradient_bytes=size, bucket_bytes=(size,)).bucket_times_s


def test_how_far_the_curve_is_believed() -> None:
    times_s = buckets_s(1 << 20, largest=1 << 28, bytes_per_s=1e9)
    assert times_s == pytest.approx(((1 << 20) / 1e9,))
    times_s = buckets_s(4 << 20, largest=1 << 20, bytes_per_s=1e9)
    assert times_s == pytest.approx(((4 << 20) / 1e9,))
    last = 1 << 20
    assert buckets_s(64 * last, largest=last, bytes_per_s=last / 0.049) is None
    times_s = buckets_s(64 * last, largest=last, bytes_per_s=last / 0.051)
    assert times_s == pytest.approx((64 * 0.051,))
    facts = make_facts(curve=make_curve(1e-3, 1e12), gradient_bytes=8, bucket_bytes=(8,))
    assert facts.bucket_times_s == (facts.latency_s,)
    assert facts.latency_s == pytest.approx(1e-3, rel=1e-4)
    facts = make_facts(changes={"strategy": "fsdp"}, curve=make_curve(), gradient_bytes=1 << 20)
    assert facts.bucket_times_s is None


# what a run holds in addition to training


def test_what_ranks_counted_is_read_and_the_rest_unknown() -> None:
    trial = make_trial(strategy="ddp", world_size=2)
    alone, results = measured(single_rank_baseline(trial), 0.02), measured(trial, 0.05)
    (facts,) = facts_from(alone, results)
    assert (facts.gradient_bytes, facts.bucket_bytes) == (None, None)
    for rank in results[0].ranks:
        rank.counters["gradient_bytes"] = 300
        rank.samples["bucket_bytes"] = [100.0, 200.0]
    (facts,) = facts_from(alone, results)
    assert (facts.gradient_bytes, facts.bucket_bytes) == (300, (100, 200))


def test_pairs_belong_to_the_ranks_they_were_measured_on() -> None:
    trial = make_trial(strategy="ddp", world_size=3)
    settings = {"benchmark": "comm", "collective": "all_reduce", "dtype": "float32", "pairs": True}
    placed = {name: trial.settings.get(name) for name in ("world_size", "link", "split_gpu", "backend")}
    ranks = [
        RankRecord(rank=rank, host="here", device="cpu", placement="", samples={"pair/0-1/4096": [0.5]})
        for rank in (0, 1)
    ]
    pairs = make_result(trial, [[1.0]] * 3)
    pairs.settings.clear()
    pairs.settings.update(settings | placed)
    pairs.ranks[:] = ranks
    (facts,) = facts_from(measured(single_rank_baseline(trial), 0.02), measured(trial, 0.05), [pairs])
    assert facts.pairs == (PairRow(low=0, high=1, size_bytes=4096, time_s=0.5, nodes=("here", "here")),)


def test_the_machine_and_plain_training_on_one_rank_are_known() -> None:
    trial = make_trial(strategy="ddp", world_size=2)
    machine = {"cores": 6, "gpus": [{"memory_bytes": 1 << 30}]}
    (facts,) = facts_from(
        measured(single_rank_baseline(trial), 0.02), measured(trial, 0.05), environment={"machine": machine}
    )
    assert (facts.cores, facts.gpu_memory_bytes) == (6, 1 << 30)
    assert facts.one_rank == make_configuration(single_rank_baseline(trial), 0.02)


def test_varied_settings_are_those_of_trials_on_as_many_ranks() -> None:
    """Threads differ between two and four ranks by themselves, formats because they were asked for."""
    formats = ("fp32", "bf16")
    two = [
        make_trial(strategy="ddp", world_size=2, threads_per_rank=2, precision=precision)
        for precision in formats
    ]
    four = [
        make_trial(strategy="ddp", world_size=4, threads_per_rank=1, precision=precision)
        for precision in formats
    ]
    all_facts = facts_from(
        *(measured(trial, 0.1) for trial in (*map(single_rank_baseline, (*two, *four)), *two, *four))
    )
    assert [facts.ranks for facts in all_facts] == [4, 4, 2, 2]
    assert {facts.varied for facts in all_facts} == {(("precision", "fp32"),), (("precision", "bf16"),)}


def test_ranks_without_one_to_hold_them_against_have_facts() -> None:
    both = [make_trial(strategy="ddp", world_size=ranks) for ranks in (2, 4)]
    assert [facts.ranks for facts in facts_from(*(measured(trial, 0.1) for trial in both))] == [4]


_SOCKETS = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"


@pytest.mark.parametrize(("log", "uses_sockets"), [(_SOCKETS, True), ("", None), (None, None)])
def test_the_log_that_attached_ranks_left_of_any_launch_is_read(
    tmp_path: Path, log: str | None, uses_sockets: bool | None
) -> None:
    trial = make_trial(strategy="ddp", world_size=2).replace(device="cuda", backend="nccl")
    (result,) = measured(trial, 0.1)
    (alone,) = measured(single_rank_baseline(trial), 0.09)
    (tmp_path / "logs").mkdir()
    if log is not None:
        (tmp_path / "logs" / f"{result.trial_id}-0-1.log").write_text(log)
    (facts,) = facts_of(Run(path=tmp_path, environment={}, results=(alone, result), warnings=()))
    assert (None if facts.nccl is None else facts.nccl.uses_sockets) == uses_sockets


def test_the_gpu_of_a_rank_is_what_it_recorded_or_its_number_on_its_host() -> None:
    trial = make_trial(strategy="ddp", world_size=3)
    (result,) = measured(trial, 0.1)
    (alone,) = measured(single_rank_baseline(trial), 0.09)
    hosts, devices = ("n1", "n2", "n2"), ("cuda:0", "cuda:1", "cuda:7")
    ranks = [
        dataclasses.replace(record, host=host, device=device)
        for record, host, device in zip(result.ranks, hosts, devices, strict=True)
    ]
    ranks[0].counters["gpu_uuid"] = "recorded"
    nodes = {"n2": {"gpus": [{"index": 0, "uuid": "x"}, {"index": 1, "uuid": "y"}]}}
    (facts,) = facts_from([alone, dataclasses.replace(result, ranks=ranks)], environment={"nodes": nodes})
    assert facts.gpu_uuids == ("recorded", "y", None)
