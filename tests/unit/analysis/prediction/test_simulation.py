"""simulate(): every strategy, one rank, the network's part of the error, and what it does not import."""

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.analysis.prediction.profile import RankProfile
from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.simulation import SIMULATORS, simulate
from scalescope.analysis.prediction.timeline import Fitted
from scalescope.errors import BadInput
from tests.builders.profiles import PerMib, profile_of, profiles, unit

PROFILE = profile_of(*[unit("block", 1.0, 2.0, activation_mib=1.0)] * 4)
PARALLEL = [name for name in SIMULATORS if name != "single"]


@pytest.mark.parametrize("strategy", SIMULATORS)
def test_one_rank_exchanges_nothing(strategy: str) -> None:
    line = simulate(PROFILE, PerMib(1.0), Setup(world_size=1, strategy=strategy))
    assert line.step_s == pytest.approx(PROFILE.compute_s)
    assert {event.lane for event in line.events} == {"compute"}


def test_one_rank_computes_all_micro_batches() -> None:
    setup = Setup(world_size=1, strategy="pipeline", micro_batches=3)
    line = simulate(PROFILE, PerMib(1.0), setup)
    assert line.step_s == pytest.approx(PROFILE.compute_s + 2 * 12.0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("strategy", PARALLEL)
def test_the_time_of_many_passes_is_that_of_all_of_them(strategy: str, schedule: str) -> None:
    """Only some are simulated, one by one; the others take as long."""
    blocks = (unit(f"block {n}", 0.1 * n, 0.3, mib=n, activation_mib=1.0) for n in range(1, 5))
    profile = dataclasses.replace(profile_of(*blocks), spread=0.1)
    setup = Setup(
        world_size=4, strategy=strategy, schedule=schedule, micro_batches=331, accumulation_steps=331
    )
    line = simulate(profile, PerMib(0.1, error=0.0), setup)
    whole = SIMULATORS[strategy](profile, PerMib(0.1, error=0.0), setup, Fitted())
    for name in ("step_s", "exposed_s", "bubble_s", "straggling_s"):
        assert getattr(line, name) == pytest.approx(getattr(whole, name), rel=1e-9)
    assert len(line.events) < len(whole.events) / 2


def test_a_million_passes_are_not_a_million_events() -> None:
    line = simulate(PROFILE, PerMib(1.0), Setup(world_size=2, accumulation_steps=1_000_000))
    assert line.step_s == pytest.approx(1_000_000 * 12.0 + line.exposed_s + PROFILE.compute_s - 12.0)
    assert len(line.events) < 1_000


@pytest.mark.parametrize("strategy", PARALLEL)
def test_every_strategy_passes_on_what_it_assumes(strategy: str) -> None:
    line = simulate(PROFILE, PerMib(1.0), Setup(world_size=4, strategy=strategy, micro_batches=4))
    assert line.assumptions == ("as per MiB",)
    assert line.exposed_s > 0 and line.network_error > 0


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(BadInput, match="ddp, zero1"):
        simulate(PROFILE, PerMib(1.0), Setup(world_size=2, strategy="ring"))


def test_an_error_of_the_network_counts_where_it_is_exposed() -> None:
    setup = Setup(world_size=2, bucket_cap_mb=1)
    line = simulate(PROFILE, PerMib(1.0, error=0.2), setup)
    assert line.network_error == pytest.approx(0.2 * line.exposed_s / line.step_s)
    assert simulate(PROFILE, PerMib(1.0, error=0.0), setup).network_error == 0.0


def test_hidden_communication_may_become_exposed() -> None:
    """Exchanges of 1.9 s fit between gradients that come every 2 s; exchanges of 2.28 s do not."""
    line = simulate(PROFILE, PerMib(1.9, error=0.2), Setup(world_size=2, bucket_cap_mb=1))
    assert line.exposed_s == pytest.approx(1.9)
    assert line.network_error == pytest.approx((2.28 + 3 * 0.28 - 1.9) / line.step_s)


def test_stragglers_slow_every_strategy() -> None:
    uneven = dataclasses.replace(PROFILE, spread=0.1)
    for strategy in PARALLEL:
        setup = Setup(world_size=4, strategy=strategy, micro_batches=4)
        even_s = simulate(PROFILE, PerMib(0.1), setup).step_s
        line = simulate(uneven, PerMib(0.1), setup)
        assert line.step_s == pytest.approx(even_s + line.straggling_s)
        assert line.straggling_s > 0


@given(
    profiles,
    st.sampled_from(PARALLEL),
    st.sampled_from(["nccl", "gloo"]),
    st.sampled_from([2, 4]),
    st.floats(0.0, 1.0),
    st.floats(1.0, 3.0),
)
def test_slower_networks_never_make_a_step_faster(
    profile: RankProfile, strategy: str, backend: str, ranks: int, per_mib: float, factor: float
) -> None:
    setup = Setup(world_size=ranks, strategy=strategy, backend=backend, micro_batches=4)
    line = simulate(profile, PerMib(per_mib), setup)
    assert simulate(profile, PerMib(per_mib * factor), setup).step_s >= line.step_s - 1e-6
    free = simulate(profile, PerMib(0.0), setup)
    assert line.step_s == pytest.approx(free.step_s + line.exposed_s)


def test_a_step_is_never_shorter_than_the_host_needs_to_issue_it() -> None:
    issued = dataclasses.replace(PROFILE, issue_s=10.0 * PROFILE.compute_s)
    setup = Setup(world_size=2, accumulation_steps=3)
    line = simulate(issued, PerMib(0.0), setup, Fitted(contention={2: 1.5}))
    assert line.step_s == line.host_s == pytest.approx(3 * 1.5 * issued.issue_s)
    network = PerMib(1e3)
    assert simulate(issued, network, setup).step_s == simulate(PROFILE, network, setup).step_s


def test_what_a_host_hides_is_not_exposed() -> None:
    network, setup = PerMib(0.1), Setup(world_size=2)
    plain = simulate(PROFILE, network, setup)
    between_s = plain.step_s - plain.exposed_s / 2.0
    line = simulate(dataclasses.replace(PROFILE, issue_s=between_s), network, setup)
    assert (line.step_s, line.host_s) == (plain.step_s, 0.0)
    assert line.exposed_s == pytest.approx(plain.exposed_s / 2.0)


def test_contention_of_a_host_does_not_slow_the_gpus_that_wait_for_it() -> None:
    issued = dataclasses.replace(PROFILE, issue_s=1.1 * PROFILE.compute_s)
    network, setup, slower = PerMib(1e3), Setup(world_size=2), Fitted(contention={2: 2.0})
    assert simulate(issued, network, setup, slower).step_s == simulate(PROFILE, network, setup).step_s


def test_predicting_does_not_import_torch() -> None:
    modules = "scalescope.analysis.prediction.simulation, scalescope.analysis.prediction.hardware_times"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "False"
