"""Rules about exchanges: started too often, sent too late, hidden by too little."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.analysis.comm.expected import LOOPBACK, Expectable, Expected, UnknownRate
from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.diagnosis import diagnose_facts
from scalescope.diagnose.exchange import Cause, causes_of
from scalescope.diagnose.facts import Facts, LargeParameter
from scalescope.diagnose.finding import Abstention, Finding
from scalescope.diagnose.rules.exchange import amp_gradients_rule, exchange_rule
from tests.builders.facts import ON_GPUS, abstention, evidence_of, finding, levers, make_curve, make_facts

MB = 1_000_000


def exposed(
    exposed_s: float = 0.05,
    *,
    step_s: float = 0.1,
    buckets: tuple[int, ...] = (4 * MB,),
    latency_s: float = 1e-4,
    bytes_per_s: float = 1e9,
    hook: str = "none",
    cap_mb: float = 25.0,
    expected: Expectable = LOOPBACK,
    changes: Mapping[str, object] | None = None,
    **settings: Any,
) -> Facts:
    """Two ranks that wait that long for buckets which travel over such a network."""
    return make_facts(
        {COMMUNICATION: exposed_s},
        step_s=step_s,
        settings={"comm_hook": hook, "bucket_cap_mb": cap_mb, **settings},
        changes=changes,
        expected=expected,
        curve=make_curve(latency_s, bytes_per_s),
        gradient_bytes=sum(buckets),
        bucket_bytes=buckets,
    )


def outcome(cause: Cause, facts: Facts) -> Finding | Abstention | None:
    """What the rule says about one cause."""
    return next((said for said in exchange_rule(facts) if said.rule == cause), None)


# communication-bound by latency


def slow_to_start() -> Facts:
    return exposed(0.02, buckets=(10_000,), latency_s=0.02, changes=ON_GPUS)


def test_exchanges_that_only_pay_for_their_start_are_bound_by_latency() -> None:
    cause = finding(outcome(Cause.LATENCY, slow_to_start()))
    assert evidence_of(cause) == {"latency": pytest.approx(0.020001, rel=1e-4), "buckets": 1}
    assert cause.root
    assert cause.share == pytest.approx(0.2)
    assert levers(cause) == ["batch_size", "accumulation_steps"]


def test_larger_buckets_are_advised_against_latency_where_there_are_several_smaller_ones() -> None:
    cause = finding(outcome(Cause.LATENCY, exposed(0.02, buckets=(1000,) * 40, latency_s=3e-4)))
    assert cause.share == pytest.approx(0.2)
    assert levers(cause)[0] == "bucket_cap_mb=100.0"
    many = exposed(0.02, buckets=(1000,) * 40, latency_s=3e-4, cap_mb=200.0)
    assert levers(finding(outcome(Cause.LATENCY, many))) == ["batch_size", "accumulation_steps"]
    assert finding(outcome(Cause.SMALL_BUCKETS, many)).advice == ()


def test_a_core_that_gloo_shares_with_the_rank_is_remarked() -> None:
    shared = finding(outcome(Cause.LATENCY, exposed(0.02, buckets=(10_000,), latency_s=0.02)))
    assert "one core for compute and for gloo's thread" in shared.claim
    for changes in ({"threads_per_rank": 2}, {"pin_cores": "no"}, ON_GPUS):
        free = exposed(0.02, buckets=(10_000,), latency_s=0.02, changes=changes)
        assert "gloo" not in finding(outcome(Cause.LATENCY, free)).claim


def test_other_waiting_is_not_latency() -> None:
    assert outcome(Cause.LATENCY, exposed(buckets=(50 * MB,))) is None
    assert outcome(Cause.LATENCY, make_facts({COMMUNICATION: 0.02}, gradient_bytes=10_000)) is None
    assert outcome(Cause.LATENCY, exposed(0.05, buckets=(10_000,), latency_s=1e-3)) is None


# model too small


def little_model(**changes: Any) -> Facts:
    """40 kB of gradients for 10 ms of compute."""
    wanted = {"step_s": 0.014, "exposed_s": 0.004, "buckets": (40_000,), "latency_s": 4e-3, **changes}
    return exposed(**wanted)


def test_a_model_that_computes_little_for_one_small_exchange_is_too_small() -> None:
    cause = finding(outcome(Cause.SMALL_MODEL, little_model()))
    assert evidence_of(cause) == {
        "gradients": 40_000,
        "compute": pytest.approx(0.01),
        "latency": pytest.approx(0.004, rel=1e-3),
    }
    assert cause.root
    assert levers(cause) == ["batch_size", "accumulation_steps"]


def test_a_model_that_is_large_or_computes_enough_or_has_a_slow_network_is_not_to_blame() -> None:
    assert outcome(Cause.SMALL_MODEL, little_model(buckets=(MB,))) is None
    assert outcome(Cause.SMALL_MODEL, little_model(step_s=0.044)) is None
    assert outcome(Cause.SMALL_MODEL, little_model(latency_s=1e-3, bytes_per_s=1e7)) is None


# too little work per exchange


def little_work(**changes: Any) -> Facts:
    """4 MB in 4 ms for 10 ms of compute."""
    buckets = (1_500_000, 1_500_000, 1_000_000)
    wanted = {"step_s": 0.014, "exposed_s": 0.004, "latency_s": 1e-5, "buckets": buckets, **changes}
    return exposed(**wanted)


def test_little_compute_on_a_usual_network_needs_a_larger_batch() -> None:
    cause = finding(outcome(Cause.LITTLE_WORK, little_work()))
    assert evidence_of(cause) == {
        "compute": pytest.approx(0.01),
        "exchange": pytest.approx(0.00403, abs=5e-5),
    }
    assert levers(cause) == ["batch_size=20", "accumulation_steps"]


def test_the_batch_that_is_advised_would_be_enough() -> None:
    far = little_work(step_s=0.006, batch_size=16)  # 2 ms of compute; 12.3 ms hide 4.1
    assert levers(finding(outcome(Cause.LITTLE_WORK, far)))[0] == "batch_size=128"
    almost = little_work(step_s=0.015, batch_size=16)
    assert levers(finding(outcome(Cause.LITTLE_WORK, almost)))[0] == "batch_size=32"
    assert levers(finding(outcome(Cause.LITTLE_WORK, little_work(accumulation_steps=2)))) == ["batch_size=20"]


def test_a_batch_is_small_by_its_ratio_to_the_exchange() -> None:
    # 90 ms are little beside an exchange of 60, and half a millisecond is enough beside one of 0.1.
    long = little_work(step_s=0.15, exposed_s=0.06, buckets=(20 * MB,) * 3)
    assert finding(outcome(Cause.LITTLE_WORK, long)).root
    short = little_work(step_s=0.0006, exposed_s=0.0001, buckets=(MB,), latency_s=1e-6, bytes_per_s=1e10)
    assert outcome(Cause.LITTLE_WORK, short) is None
    assert outcome(Cause.LITTLE_WORK, little_work(step_s=0.017)) is None
    facts = little_work(step_s=0.1, exposed_s=0.06, buckets=(60 * MB,), cap_mb=100.0)
    assert evidence_of(finding(outcome(Cause.LITTLE_WORK, facts))) == {
        "compute": pytest.approx(0.04),
        "exchange": pytest.approx(0.06001, abs=5e-5),
    }


PCIE = Expected(bytes_per_s=12e9, path="PCIe 3 ×16", source="somewhere")


def test_a_small_batch_is_not_blamed_for_a_slow_network_or_what_no_batch_could_hide() -> None:
    waiting = {"bytes_per_s": 1e8, "exposed_s": 0.04, "step_s": 0.05}
    assert finding(outcome(Cause.LITTLE_WORK, little_work(**waiting))).root
    assert outcome(Cause.LITTLE_WORK, little_work(**waiting, changes=ON_GPUS, expected=PCIE)) is None
    assert outcome(Cause.LITTLE_WORK, little_work(bytes_per_s=1e7, exposed_s=0.4, step_s=0.42)) is None


# last bucket too large

FEWER_BYTES = ["batch_size", "accumulation_steps", "comm_hook"]


@pytest.mark.parametrize(
    ("facts", "root", "share", "advised"),
    [
        (exposed(0.02, buckets=(20 * MB,)), True, 0.2, ["bucket_cap_mb"]),  # compute could hide it
        (exposed(0.08, buckets=(90 * MB,), cap_mb=100.0), False, 0.4, ["bucket_cap_mb"]),  # nothing could
        (exposed(0.08, buckets=(90 * MB,)), True, 0.8, FEWER_BYTES),  # a giant parameter
        (exposed(0.03, buckets=(10 * MB, 30 * MB)), True, 0.3, None),  # the first is hidden
        (exposed(0.08, buckets=(30 * MB, 50 * MB)), False, 0.8 * 50 / 80 / 2, None),  # others are not
        (exposed(0.03, buckets=(10 * MB, 30 * MB), cap_mb=5.0), True, 0.3, FEWER_BYTES),
    ],
)
def test_a_last_bucket_costs_what_smaller_ones_could_hide(
    facts: Facts, root: bool, share: float, advised: list[str] | None
) -> None:
    cause = finding(outcome(Cause.LAST_BUCKET, facts))
    sizes = facts.bucket_bytes or ()
    assert evidence_of(cause) == {"last bucket": sizes[-1], "all buckets": sum(sizes)}
    assert (cause.root, cause.share) == (root, pytest.approx(share))
    assert f"bucket ({sizes[-1] / MB:.1f} MB)" in cause.claim
    assert advised is None or levers(cause) == advised


def test_a_giant_parameter_on_a_slow_network_is_advised_sixteen_bits_first() -> None:
    slow = {"bytes_per_s": 1e8, "changes": ON_GPUS, "expected": PCIE}
    facts = exposed(0.5, step_s=0.6, buckets=(10 * MB, 40 * MB), cap_mb=5.0, **slow)
    assert levers(finding(outcome(Cause.LAST_BUCKET, facts)))[0] == "comm_hook"


def test_a_last_bucket_that_is_small_or_only_pays_for_its_start_is_not_too_large() -> None:
    assert outcome(Cause.LAST_BUCKET, exposed(0.03, buckets=(21 * MB, 20 * MB))) is None
    assert outcome(Cause.LAST_BUCKET, exposed(0.01, buckets=(10_000,), latency_s=0.01)) is None


# gradients in fp32 under autocast


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_leaves_gradients_in_fp32(precision: str) -> None:
    facts = make_facts({COMMUNICATION: 0.04}, changes={"precision": precision})
    cause = finding(amp_gradients_rule(facts))
    assert cause.claim.startswith(precision)
    assert cause.share == pytest.approx(0.2)  # half as many bytes
    assert levers(cause) == ["comm_hook=bf16"]


def test_gradients_that_are_short_or_hidden_are_no_finding() -> None:
    for changes in ({"precision": "fp32"}, {"precision": "bf16", "comm_hook": "bf16"}):
        assert amp_gradients_rule(make_facts({COMMUNICATION: 0.04}, changes=changes)) is None
    assert amp_gradients_rule(make_facts({COMMUNICATION: 0.0}, changes={"precision": "bf16"})) is None


# communication-bound by bandwidth


def test_bandwidth_abstains_where_the_exchange_or_its_latency_was_not_measured() -> None:
    facts = make_facts({COMMUNICATION: 0.04}, curve=make_curve(), gradient_bytes=None)
    abstained = abstention(outcome(Cause.BANDWIDTH, facts))
    assert abstained.command == "scalescope comm --collective all_reduce --world-size 2 --device cpu"
    facts = make_facts({COMMUNICATION: 0.04}, gradient_bytes=4 * MB)
    assert abstention(outcome(Cause.BANDWIDTH, facts)).missing == "the latency of the smallest exchange"


def test_a_hook_halves_what_is_sent() -> None:
    cause = finding(outcome(Cause.BANDWIDTH, exposed(0.05, buckets=(40 * MB,), hook="fp16")))
    evidence = evidence_of(cause)
    assert (evidence["gradients sent"], evidence["exchange"]) == (20 * MB, pytest.approx(0.02, rel=0.02))


@pytest.mark.parametrize(
    ("bytes_per_s", "expected", "words"),
    [
        (1e9, PCIE, "997.6 MB/s, 8 % of what PCIe 3 ×16 should carry;"),
        (1.2e10, PCIE, "MB/s, what PCIe 3 ×16 should carry;"),
        (1e9, LOOPBACK, "997.6 MB/s;"),
    ],
)
def test_bandwidth_is_told_as_a_share_of_what_it_should_be(
    bytes_per_s: float, expected: Expectable, words: str
) -> None:
    facts = exposed(0.004, step_s=0.008, buckets=(50 * MB,), bytes_per_s=bytes_per_s, expected=expected)
    assert words in finding(outcome(Cause.BANDWIDTH, facts)).claim


# network slower than its hardware


def test_a_network_far_below_its_links_is_the_cause_and_names_the_source() -> None:
    cause = finding(outcome(Cause.NETWORK, exposed(0.05, buckets=(50 * MB,), changes=ON_GPUS, expected=PCIE)))
    assert cause.share == pytest.approx(0.5)
    assert evidence_of(cause) == {"bus bandwidth": pytest.approx(1e9, rel=0.01), "expected": 12e9}
    assert "PCIe 3 ×16 should carry 12 GB/s (source: somewhere)" in cause.claim


def test_what_is_missing_to_judge_a_network_is_named() -> None:
    unknown = UnknownRate(missing="the rate of the network cards of n1")
    abstained = abstention(
        outcome(Cause.NETWORK, exposed(0.05, buckets=(50 * MB,), changes=ON_GPUS, expected=unknown))
    )
    assert abstained.missing == "the expected bandwidth of this network (the rate of the network cards of n1)"
    assert abstained.command == "scalescope check"


@pytest.mark.parametrize(
    "facts",
    [
        exposed(0.05, buckets=(50 * MB,)),  # gloo inside a host
        exposed(0.05, buckets=(50 * MB,), bytes_per_s=6e9, changes=ON_GPUS, expected=PCIE),
        exposed(0.05, buckets=(10_000,), latency_s=0.05, changes=ON_GPUS, expected=PCIE),
        exposed(0.0, buckets=(50 * MB,), changes=ON_GPUS, expected=PCIE),
    ],
)
def test_a_network_is_not_blamed_without_evidence(facts: Facts) -> None:
    assert outcome(Cause.NETWORK, facts) is None


# which of them is the cause

ONE_LATENCY = {"buckets": (10_000,), "latency_s": 0.02}
MANY_BUCKETS = {"buckets": (1000,) * 40, "latency_s": 3e-4}
OVER_PCIE = {"changes": ON_GPUS, "expected": PCIE}
SLOW_LINK = {"bytes_per_s": 1e8, "exposed_s": 0.04, "step_s": 0.05}


@pytest.mark.parametrize(
    ("facts", "causes"),
    [
        (exposed(0.02, **ONE_LATENCY), [Cause.LATENCY]),
        (exposed(0.02, **MANY_BUCKETS), [Cause.SMALL_BUCKETS, Cause.LATENCY]),
        (exposed(0.02, buckets=(1000,) * 6, latency_s=3e-3), [Cause.LATENCY, Cause.SMALL_BUCKETS]),
        (little_model(), [Cause.SMALL_MODEL, Cause.LATENCY]),
        (little_model(changes=ON_GPUS), [Cause.LATENCY, Cause.SMALL_MODEL]),  # even one exchange is slow
        (little_work(buckets=(1_500_000,), latency_s=4e-3, bytes_per_s=1e10), [Cause.LATENCY]),
        (little_work(), [Cause.LITTLE_WORK, Cause.BANDWIDTH]),
        (little_work(**SLOW_LINK), [Cause.LITTLE_WORK, Cause.BANDWIDTH]),
        (little_work(**SLOW_LINK, **OVER_PCIE), [Cause.BANDWIDTH, Cause.NETWORK]),
        (little_work(bytes_per_s=1e7, exposed_s=0.4, step_s=0.42), [Cause.BANDWIDTH]),
        # 10 ms of compute have 6.7 ms of backward, which 4 MB hide behind, and 8 MB do not.
        (little_work(buckets=(4 * MB,)), [Cause.LAST_BUCKET, Cause.BANDWIDTH]),
        (
            little_work(buckets=(8 * MB,), exposed_s=0.008, step_s=0.018),
            [Cause.LITTLE_WORK, Cause.BANDWIDTH, Cause.LAST_BUCKET],
        ),
        (exposed(0.05, buckets=(10_000,), latency_s=1e-3), []),  # ranks wait for something else
    ],
)
def test_the_cause_stands_first_and_what_it_explains_after_it(facts: Facts, causes: list[Cause]) -> None:
    assert list(causes_of(facts)) == causes
    found = [cause.rule for cause in diagnose_facts((facts,)).findings]
    assert [rule for rule in found if rule in list(Cause)] == causes


# What is sent, by name


def of_words(share: float | None, *, changes: Mapping[str, object] | None = None) -> Finding:
    """A table of words makes most of the bytes."""
    facts = exposed(0.02, buckets=(20_000_000,), changes=changes)
    table = LargeParameter(name="words.weight", size_bytes=18_000_000, changed_share=share)
    head = LargeParameter(name="head.weight", size_bytes=1_000_000, changed_share=1.0)
    return finding(outcome(Cause.BANDWIDTH, dataclasses.replace(facts, largest_parameters=(table, head))))


def test_the_parameters_that_make_most_of_the_bytes_are_named() -> None:
    cause = of_words(1.0)
    assert "The largest parameters by bytes: words.weight (90 %), head.weight (5 %)." in cause.claim
    assert evidence_of(cause)["share of words.weight"] == pytest.approx(0.9)
    assert "rows" not in cause.claim
    assert "rows" not in of_words(None).claim


def test_a_table_of_which_a_step_changes_few_rows_is_sent_sparse() -> None:
    cause = of_words(0.01)
    assert "A step changes 1 % of the rows of words.weight but sends all of them." in cause.claim
    assert "sparse=True" in cause.advice[0].label
    assert all("sparse" not in advice.label for advice in of_words(0.01, changes=ON_GPUS).advice)
