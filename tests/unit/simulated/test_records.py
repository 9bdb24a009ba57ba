"""What simulated ranks write down, by a cost model or of a cluster; they share no code with the analysis."""

import dataclasses
import subprocess
import sys
from dataclasses import replace

import pytest

from scalescope.analysis.recording import recordings
from scalescope.catalog.benchmarks.arrivals import MOST_STEPS
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.explanations import arrivals_of, breakdown_of
from scalescope.experiment.trial import Trial
from scalescope.launch.validity import judge
from scalescope.results.result import RankRecord, Result
from scalescope.results.traces import step_parts
from scalescope.results.traces.summary import TraceSummary
from tests.builders.requests import ask, flags
from tests.builders.results import make_result, make_trial
from tests.simulated.benchmarks import arrivals, comm, train
from tests.simulated.benchmarks.breakdown import simulate
from tests.simulated.cluster.model import ClusterModel, Network
from tests.simulated.costs import CostModel

MODEL = ClusterModel(
    jitter_s=0.001,
    slow_rank=5,
    slow_s=0.004,
    burst_probability=0.02,
    burst_s=0.02,
    ranks_per_node=4,
    buckets=3,
)
PARTS = ("compute_s", "exposed_s", "copy_s", "idle_host_s", "idle_data_s", "idle_queued_s")


def trial_of(ranks: int = 8) -> Trial:
    (trial,) = expand(
        ask(world_size=str(ranks), batch_size="50", steps_per_epoch="20"), MODEL.machine(ranks)
    ).trials
    return trial


def comm_trial(**asked: str) -> Trial:
    texts = {"world_size": "12", "collective": "all_reduce", "min_bytes": "1024", **asked}
    (trial,) = expand(build_experiment("comm", "comm", {}, flags(**texts), {}), MODEL.machine(12)).trials
    return trial


def recorded(model: ClusterModel) -> list[RankRecord]:
    return arrivals.simulate(model, arrivals_of(trial_of()), 0).records


def test_recorded_steps_are_whole_on_every_rank() -> None:
    records = recorded(MODEL)
    for record in records:
        summary = TraceSummary.from_record(record.samples)
        assert summary is not None and summary.collective_s is not None
        assert summary.steps == len(record.samples["recorded_step_time_s"]) == MOST_STEPS
        assert {len(step) for step in summary.collective_s} == {3}
        for step in range(MOST_STEPS):
            total = sum(summary.parts[part][step] for part in PARTS)
            assert total == pytest.approx(summary.parts["step_s"][step], abs=1e-7)
            assert sum(summary.collective_exposed_s[step]) == pytest.approx(
                summary.parts["exposed_s"][step], abs=1e-7
            )
    assert [record.host for record in records] == ["node0"] * 4 + ["node1"] * 4


def test_recording_makes_steps_longer_and_not_the_waiting() -> None:
    free, recording = (recorded(replace(MODEL, recording_s=added_s)) for added_s in (0.0, 0.01))
    for before, after in zip(free, recording, strict=True):
        longer = [
            late - early
            for early, late in zip(before.samples["trace/step_s"], after.samples["trace/step_s"], strict=True)
        ]
        assert longer == pytest.approx([0.01] * MOST_STEPS, abs=1e-7)
        assert before.samples["trace/exposed_s"] == pytest.approx(after.samples["trace/exposed_s"], abs=1e-7)


def test_ranks_without_communication_run_at_their_speed_and_others_together() -> None:
    calm = replace(MODEL, jitter_s=0.0, burst_probability=0.0)
    trial = trial_of()
    together = train.simulate(calm, trial, 0).records
    apart = train.simulate(calm, trial.replace(without_communication=True), 0).records
    assert len({record.samples["step_time_s"][0] for record in together}) == 1
    delays = [record.samples["step_time_s"][0] - apart[0].samples["step_time_s"][0] for record in apart]
    assert delays == pytest.approx([0.004 if rank == 5 else 0.0 for rank in range(8)])


def test_pairs_show_which_node_has_the_slow_card() -> None:
    model = replace(MODEL, network=Network(slow_node=1, slow_by=4.0))
    records = comm.simulate(model, comm_trial(pairs="true"), 0).records
    large = 1 << 26
    times = {
        key: values[0]
        for record in records
        for key, values in record.samples.items()
        if key.endswith(str(large))
    }
    assert len(times) == 3 * 6 + 3 * 4  # inside nodes of four, and rank by rank between nodes
    assert times[f"pair/0-4/{large}"] > 3 * times[f"pair/0-8/{large}"]
    assert times[f"pair/4-5/{large}"] == times[f"pair/0-1/{large}"]


def test_collectives_take_what_an_exchange_of_the_model_takes() -> None:
    (record, *_) = comm.simulate(MODEL, comm_trial(), 0).records
    assert record.samples["all_reduce/in/1024"][0] == pytest.approx(MODEL.transfer_s(1024, 12), abs=1e-9)


def test_a_cost_model_has_waiting_only_for_its_late_rank() -> None:
    model = CostModel(exposed_comm_s={2: 0.003}, late_s={1: 0.002})
    records = arrivals.simulate(model, arrivals_of(trial_of(2)), 0).records
    assert [record.samples["trace/collective_s"][0] for record in records] == pytest.approx([0.005, 0.003])


COSTS = CostModel(fixed_s=0.06, per_sample_s=0.001, exposed_comm_s={2: 0.02}, input_s={2: 0.01})
TWO = make_trial(world_size=2, strategy="ddp", num_workers=0).replace(device="cuda")


def simulated() -> Result:
    outcome = simulate(COSTS, breakdown_of(TWO), 0)
    assert judge(breakdown_of(TWO), outcome.records).status == "ok"
    return dataclasses.replace(make_result(breakdown_of(TWO), [[1.0], [1.0]]), ranks=outcome.records)


def test_every_rank_records_the_parts_of_the_model_s_step() -> None:
    first, second = recordings(simulated())
    assert (first.rank, second.rank) == (0, 1)
    for recording in (first, second):
        assert recording.recorded_step_s == pytest.approx(COSTS.step_time_s(TWO))
        assert recording.parts[step_parts.COMMUNICATION] == pytest.approx(0.02)
        assert recording.parts[step_parts.IDLE_INPUT] == pytest.approx(0.01)
        computed = recording.parts[step_parts.FORWARD] + recording.parts[step_parts.BACKWARD]
        assert computed == pytest.approx(0.06 + 10 * 0.001)
        assert sum(recording.parts.values()) == pytest.approx(recording.recorded_step_s)


_IMPORTED = """
import sys
from tests.simulated import launcher
from tests.simulated.benchmarks import arrivals, comm, train
from tests.simulated.cluster import truth
print([name for name in sys.modules if name.startswith(("scalescope.analysis", "scalescope.diagnose"))])
"""


def test_the_simulation_shares_no_code_with_the_analysis() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
