"""The command line of a node's first rank samples its node and answers its worker."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.launch.telemetry.load import NOBODY, LoadMeter
from scalescope.launch.torchrun.node_watch import NodeSampler, NodeWatch, merged_telemetry
from scalescope.results.result import WINDOW
from tests.unit.launch.telemetry.test_infiniband import count

BEGIN = {"begin": {"gpus": [], "pids": []}}
END = {"end": dict(zip(WINDOW, (0.0, 1e12), strict=True))}


@pytest.fixture
def watch(tmp_path: Path) -> NodeWatch:
    sampler = NodeSampler(1, LoadMeter(NOBODY), tmp_path)
    return NodeWatch(sampler, tmp_path)


def test_the_topology_of_the_node_is_described(watch: NodeWatch, tmp_path: Path) -> None:
    node = tmp_path / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0-3\n")
    answer = watch.answer({"topology": "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"})
    assert answer["topology"]["numa_cores"] == {0: (0, 1, 2, 3)}
    assert answer["topology"]["gpu_paths"] == {"0-1": "NV4"}


def test_a_launch_is_sampled_between_its_begin_and_its_end(watch: NodeWatch, tmp_path: Path) -> None:
    count(tmp_path / "sys", "link_downed", 1)
    assert watch.answer(BEGIN) == {}
    count(tmp_path / "sys", "link_downed", 2)
    telemetry = watch.answer(END)["telemetry"]
    assert telemetry["infiniband"] == {"mlx5_0/1": {"link_downed": 1}}
    assert {"samples", "interval_s", "cpu"} <= set(telemetry)
    assert watch.answer(END) == {}  # nothing was begun


def test_every_question_has_an_answer_even_one_that_fails(watch: NodeWatch) -> None:
    questions = b"".join(
        json.dumps(question).encode() + b"\n" for question in (BEGIN, END, {"begin": {}}, {"topology": None})
    )
    answers = io.BytesIO()
    watch.serve(io.BytesIO(questions), answers)
    lines: list[dict[str, Any]] = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert [sorted(line) for line in lines] == [[], ["telemetry"], ["problem"], ["topology"]]


def test_processes_that_are_not_below_our_launcher_are_not_sampled(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    sampling = NodeSampler(1, LoadMeter(NOBODY, tmp_path / "proc"), tmp_path).start([], [4711])
    sampling.close()
    assert "rank_busy_cores" not in sampling.of_window([]).get("cpu", {})


def test_the_telemetry_of_one_host_is_as_that_of_local_ranks() -> None:
    here = {"cpu": {"host_utilization": 0.5}}
    assert merged_telemetry({"n1": here}) == merged_telemetry({"n1": here, "n2": {}}) == here
    assert merged_telemetry({"n1": {}}) == {}


def test_of_several_hosts_each_is_kept_and_the_most_disturbed_one_s_load_counts() -> None:
    quiet = {"cpu": {"host_utilization": 0.5}, "load": {"cores": 8, "other_cores": 0.1}}
    busy = {
        "cpu": {"host_utilization": 0.9},
        "load": {"cores": 8, "other_cores": 3.0},
        "infiniband": {"m/1": {}},
    }
    merged = merged_telemetry({"n1": quiet, "n2": busy})
    assert merged["hosts"] == {"n1": quiet, "n2": busy}
    assert merged["cpu"] == quiet["cpu"]  # what has always been there
    assert merged["load"] == busy["load"]
    assert "infiniband" not in merged
