"""Evidence from two nodes, from launch to explanation: a hot GPU, a lossy port, far cores, no GPUDirect."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from scalescope.results.run_folder import RunFolder
from scalescope.studies.stored import explain
from tests.builders.requests import with_gpus
from tests.builders.studies import scale
from tests.simulated.launcher import CostModel, FakeLauncher
from tests.unit.analysis.checks.test_node_facts import TOPOLOGY

from .recording import RecordingWatcher, ask, summary_of

HOSTS = ("n1", "n1", "n2", "n2")
GPUS = ("a", "b", "c", "d")
THERE = dataclasses.replace(
    TOPOLOGY,
    gpus=tuple(
        dataclasses.replace(gpu, uuid=uuid) for gpu, uuid in zip(TOPOLOGY.gpus, ("c", "d"), strict=True)
    ),
)
AFFINITIES = ("0-1", "2-3", "0-1", "0-1")  # rank 3's GPU is on the other socket
LOG = """\
{host}:1:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
{host}:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0{direct}
{host}:1:9 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels
"""


class TwoNodes(FakeLauncher):
    """Ranks of srun on two nodes with two GPUs each, and what these nodes handed over."""

    def __init__(
        self, model: CostModel, *, slowdowns: Mapping[str, Mapping[str, float]], direct: str
    ) -> None:
        super().__init__(model, with_gpus(4))
        self._slowdowns = slowdowns
        self._direct = direct

    def nodes(self) -> dict[str, Machine]:
        return {host: with_gpus(2) for host in ("n1", "n2")}

    def systems(self) -> dict[str, dict[str, Any]]:
        return {"n1": {"topology": TOPOLOGY.to_json()}, "n2": {"topology": THERE.to_json()}}

    def launch(self, trial: Trial, launch: int, *others: Any, **named: Any) -> Outcome:
        outcome = super().launch(trial, launch, *others, **named)
        folder: RunFolder = others[0]
        ranks = [self._placed(record) for record in outcome.records]
        for record in ranks:
            text = LOG.format(host=record.host, direct=self._direct)
            folder.log_file(trial.trial_id, launch, record.rank).write_text(text)
        hosts = {
            host: {
                "cpu": {"host_utilization": 0.3},
                "gpus": {
                    gpu: {
                        "sm_clock_hz": [1.2e9],
                        "sm_clock_limit_hz": 2e9,
                        "slowdowns": self._slowdowns.get(gpu, {}),
                    }
                    for gpu, where in zip(GPUS, HOSTS, strict=True)
                    if where == host
                },
                "infiniband": {"mlx5_0/1": {"symbol_error": 12} if host == "n2" else {}},
            }
            for host in dict.fromkeys(record.host for record in ranks)
        }
        telemetry = {"hosts": hosts} if len(hosts) > 1 else hosts["n1"]
        return dataclasses.replace(outcome, records=ranks, telemetry=telemetry)

    def _placed(self, record: RankRecord) -> RankRecord:
        number = record.rank
        where = {"affinity": AFFINITIES[number], "gpu_uuid": GPUS[number]}
        return dataclasses.replace(
            record, host=HOSTS[number], device=f"cuda:{number % 2}", counters={**record.counters, **where}
        )


def findings(**nodes: Any) -> tuple[dict[str, dict[str, Any]], str]:
    """The findings of a run by their rules, in order, and what `explain` says of it."""
    launcher = TwoNodes(CostModel(late_s={3: 0.05}), **{"slowdowns": {}, "direct": "/GDRDMA", **nodes})
    asked = ask("scale", world_size=[1, 4], batch_size=50, repeats=4, device="cuda")
    report = scale(asked, launcher, RecordingWatcher())
    by_rule = {finding["rule"]: finding for finding in summary_of(report.path)["results"]["findings"]}
    assert report.run is not None
    shown = explain(report.run.path)
    rows = [" ".join(row) for section in shown if section.table for row in section.table.rows]
    return by_rule, "\n".join([*rows, *(line for section in shown for line in section.details)])


def test_the_gpu_of_the_late_rank_a_lossy_port_far_cores_and_unused_cards_are_named() -> None:
    by_rule, explained = findings(slowdowns={"d": {"thermal (hardware)": 0.8}})
    assert next(iter(by_rule)) == "GPU slowed down"
    hot, late = by_rule["GPU slowed down"], by_rule["straggling rank"]
    assert "The GPU of rank 3 on n2 was slowed down to 60 % of its clock" in hot["claim"]
    assert hot["lost"] == pytest.approx(late["lost"])
    assert "thermal (hardware) (1 GPU)" in explained
    assert "mlx5_0/1 of n2: symbol_error +" in by_rule["network errors"]["claim"]
    assert "Rank 3's cores on n2" in by_rule["cores far from the GPU or network card"]["claim"]
    assert "Rank 3 on n2: cores 0-1 on NUMA node 0, GPU 1 on NUMA node 1 (distance 21)" in explained
    assert "n2 2 (cores 0-1; 2-3), distance up to 21 2 × infiniband 400 Gbit/s" in explained
    assert "NCCL does not use GPUDirect RDMA" not in by_rule
    assert by_rule["unused network cards"]["evidence"]["cards of n2"]["value"] == "mlx5_0 of mlx5_0, mlx5_1"


def test_a_hot_gpu_of_another_rank_costs_nothing() -> None:
    by_rule, _ = findings(slowdowns={"b": {"thermal (hardware)": 0.8}})
    assert by_rule["GPU slowed down"]["lost"] == 0.0


def test_a_power_cap_that_all_gpus_share_is_information_and_missing_gpudirect_a_finding() -> None:
    by_rule, explained = findings(slowdowns={gpu: {"power cap": 1.0} for gpu in GPUS}, direct="")
    assert "GPU slowed down" not in by_rule
    assert "power cap (2 GPUs)" in explained
    assert by_rule["NCCL does not use GPUDirect RDMA"]["evidence"]["transport"]["value"] == "NET/IB"
