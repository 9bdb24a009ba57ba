"""Network measurements that accompany training: how often, between which ranks, and on which backend."""

from scalescope.experiment.expand import expand
from scalescope.experiment.machine import Machine
from scalescope.studies.plan import Plan
from scalescope.studies.scaling.network import exchanges, nccl_logs, network_of, pairs
from tests.builders.requests import ask, with_gpus
from tests.simulated.launcher import TWO_CORES


def plan(machine: Machine = TWO_CORES, **asked: str) -> Plan:
    experiment = ask(**{"device": "cpu", "batch_size": "8", **asked})
    expansion = expand(experiment, machine)
    return Plan(experiment=expansion.experiment, trials=expansion.trials, machine=machine)


def on_gpus(**asked: str) -> Plan:
    return plan(with_gpus(4), device="cuda", **asked)


def test_every_number_of_ranks_exchanges_once() -> None:
    trials = exchanges(plan(world_size="1,2,4", batch_size="8,16"))
    assert [trial.world_size for trial in trials] == [2, 4]
    assert {trial.settings["benchmark"] for trial in trials} == {"comm"}
    assert {trial.settings["collective"] for trial in trials} == {"all_reduce"}
    for trial in trials:  # it ends where only bytes count
        assert trial.settings["longest_exchange"] == 0.05
        assert (trial.settings["min_bytes"], trial.settings["max_bytes"]) == (1 << 10, 1 << 26)
    alone = plan(world_size="1")
    assert exchanges(alone) == pairs(alone) == network_of(alone, with_nccl_log=True) == ()


def test_an_exchange_is_placed_as_the_training_ranks_are() -> None:
    (exchange,) = exchanges(plan(world_size="2", threads_per_rank="2", link="1gbit"))
    assert exchange.settings["threads_per_rank"] == 2
    assert exchange.settings["link"] == "1gbit"
    assert "batch_size" not in exchange.settings


def test_pairs_are_measured_from_three_ranks() -> None:
    assert pairs(plan(world_size="1,2")) == ()
    (pair_trial,) = pairs(plan(world_size="1,3"))
    assert (pair_trial.world_size, pair_trial.settings["pairs"]) == (3, True)


def test_pairs_of_many_ranks_would_take_too_long() -> None:
    (pair_trial,) = pairs(plan(world_size="1,8", oversubscribe="true"))
    assert (pair_trial.world_size, pair_trial.settings["iters"]) == (8, 10)
    assert pairs(plan(world_size="1,9", oversubscribe="true")) == ()
    assert [pair.world_size for pair in pairs(plan(world_size="1,2,3,4"))] == [4]


def test_only_nccl_is_logged() -> None:
    assert nccl_logs(exchanges(plan(world_size="2"))) == ()
    (logged,) = nccl_logs(exchanges(on_gpus(world_size="2")))
    assert (logged.settings["purpose"], logged.settings["dtype"]) == ("nccl_log", "float32")
    assert logged.settings["env"]["NCCL_DEBUG"] == "INFO"
    (exchange,) = exchanges(on_gpus(world_size="2"))
    (logged,) = nccl_logs([exchange.replace(env={"NCCL_P2P_DISABLE": "1"})])
    assert {"NCCL_P2P_DISABLE", "NCCL_DEBUG"} <= set(logged.settings["env"])
    assert len(nccl_logs([exchange, exchange.replace(dtype="float16")])) == 1


def test_the_most_ranks_are_logged_if_the_launcher_can_set_variables() -> None:
    asked = on_gpus(world_size="1,2,4")
    without_log, with_log = network_of(asked, with_nccl_log=False), network_of(asked, with_nccl_log=True)
    assert len(with_log) == len(without_log) + 1
    assert [trial.world_size for trial in with_log if trial.settings["purpose"] == "nccl_log"] == [4]
    assert not any(trial.settings["purpose"] == "nccl_log" for trial in without_log)
