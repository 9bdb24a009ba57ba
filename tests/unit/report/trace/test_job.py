"""The traces of a job as a text, as data and as a figure."""

import dataclasses
import json

import pytest

from scalescope.analysis.trace.job import JobTrace
from scalescope.diagnose.trace_rules import diagnose
from scalescope.report.findings import findings_section
from scalescope.report.trace.job import job_figure, job_json, job_sections, short_name
from scalescope.results.traces.collectives import Group
from tests.builders.rank_traces import alone, changed, job_of, meeting_job, operation, rank_trace, step
from tests.unit.report.conftest import Golden, Render

DATA = Group(name="0", description="mesh_dp", size=4, ranks=(0, 1, 2, 3))
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernel>(int)"


def three_of_four() -> JobTrace:
    """Rank 2 is late by 20 ms in each step; the file of rank 3 is damaged."""
    job = meeting_job(
        [[0.0] * 3, [0.001, 0.0, 0.002], [0.02] * 3],
        ranks=4,
        group="0",
        groups=(DATA,),
        size_bytes=4e8,
    )
    rows = (
        operation("aten::mm", "[4096,768] [768,3072]", gpu_s=0.04, flops=2e13, line="model.py(31): forward"),
        operation(KERNEL, dtype=None, phase=None, gpu_s=0.004, per_step=24.0),
    )
    job = changed(job, 0, operations=rows, has_shapes=True, notes=("2 events were left out",))
    return dataclasses.replace(job, unread={"traces/rank3.json": "the file is damaged"})


def test_the_printed_explanation(render: Render, golden: Golden) -> None:
    job = three_of_four()
    diagnosis = diagnose(job)
    sections = (*job_sections(job, diagnosis), *findings_section(diagnosis, every=True))
    golden("explained_traces.txt", render(sections, verbose=True))


def test_data_holds_all_that_is_known() -> None:
    job = three_of_four()
    data = job_json(job, diagnose(job))
    assert json.loads(json.dumps(data)) == data
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1, 2]
    assert data["unread"] == {"traces/rank3.json": "the file is damaged"}
    assert data["step"] == {
        "count": 3,
        "mean_s": pytest.approx(0.11),
        "shortest_s": pytest.approx(0.11),
        "longest_s": pytest.approx(0.11),
        "is_marked": True,
    }
    waiting = data["waiting"]
    assert (waiting["known"], waiting["late_ranks"], waiting["pattern"]) == ("bounds", [2], "same ranks")
    assert waiting["by_rank"]["0"] == {"waits_s": pytest.approx(0.02), "late_s": 0.0}
    assert [rank["waiting_s"] for rank in data["ranks"]] == [None] * 3  # at least, so not by rank
    (group,) = data["groups"]
    assert (group["size"], group["dimension"], group["ranks"]) == (4, "data", [0, 1, 2, 3])
    (reduced,) = group["collectives"]
    assert (reduced["algbw_gbs"], reduced["busbw_gbs"]) == (pytest.approx(40.0), pytest.approx(60.0))
    assert [row["line"] for row in data["operations"]] == ["model.py(31): forward", None]
    late, *_ = data["findings"]
    assert (late["rule"], late["ranks"]) == ("slower kernels than other ranks", [2])
    assert late["cost_s"] == pytest.approx(0.0195)
    assert {each["rule"] for each in data["abstentions"]} == {"batchable loops"}


def test_what_is_not_known_is_null() -> None:
    job = job_of(meeting_job([[0.0], [0.01]]).ranks[0])
    data = job_json(job, diagnose(job))
    assert (data["waiting"]["known"], data["waiting"]["waiting_s"]) == ("none", None)
    ((traffic,),) = [group["collectives"] for group in data["groups"]]
    unknown = ("bytes", "transfer_s", "waiting_s", "algbw_gbs", "busbw_gbs")
    assert [traffic[name] for name in unknown] == [None] * 5


def test_the_figure_stacks_the_parts_of_each_rank() -> None:
    job = job_of(rank_trace(0, step(copies_s=0.02)), rank_trace(3, step(exposed_s=0.03)))
    (panel,) = job_figure(job).panels
    assert panel.names == ("rank 0", "rank 3")
    assert {series.label: series.y for series in panel.series} == {
        "compute": pytest.approx((80.0, 70.0)),
        "exposed communication": pytest.approx((0.0, 30.0)),
        "copies": pytest.approx((20.0, 0.0)),
    }


def test_what_is_between_operations_of_the_cpu_is_not_called_idle() -> None:
    job = alone(step(idle_host_s=0.03), on_gpu=False)
    table = job_sections(job, diagnose(job))[1].table
    assert table is not None
    assert [row[0] for row in table.rows] == ["compute", "between operations", "step"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::mm", "aten::mm"),
        (KERNEL, "vectorized_elementwise_kernel"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int)", "CatArrayBatchedCopy"),
        ("torch::autograd::CppNode<SumOp>", "Sum"),
        ("c10d::allreduce_", "c10d::allreduce_"),
    ],
)
def test_kernels_are_shown_without_their_templates(name: str, shown: str) -> None:
    assert short_name(name) == shown
