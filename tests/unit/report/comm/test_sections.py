"""The output of `comm`: the sentence, the gate, the curves, the pairs and what NCCL chose."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.placement import Placement
from scalescope.catalog.setting import settings_of
from scalescope.report.comm.sections import (
    communication_json,
    communication_sections,
    curves_json,
    gate_section,
    next_after_communication,
    pairs_json,
    pairs_verdict,
    verdict,
)
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import Run
from scalescope.results.topology import Topology
from tests.builders.results import make_row
from tests.builders.topologies import (
    A100,
    environment_of,
    gpu_sites,
    paths_between,
    two_sockets_of_pairs,
)

KEY = f"all_reduce/in/{1 << 20}"


def make_run(
    *samples: dict[str, list[float]], path: Path = Path("unused"), gpu: str | None = None, **changes: Any
) -> Run:
    """A run of one launch from the samples of every rank; `changes` are of its settings."""
    device = "cuda" if gpu else "cpu"
    settings: dict[str, Any] = {
        setting.name: setting.default_for(device)
        for card in (Placement, Comm)
        for setting in settings_of(card)
    }
    settings |= {"benchmark": "comm", "world_size": len(samples), "device": device, "backend": "gloo"}
    records = [
        RankRecord(
            rank=rank, host="here", device=f"cuda:{rank}" if gpu else "cpu", placement="", samples=sample
        )
        for rank, sample in enumerate(samples)
    ]
    result = Result(
        trial_id="abc",
        launch=0,
        order=0,
        status="ok",
        settings={**settings, **changes},
        started_at="2026-01-15T10:30:00+00:00",
        duration_s=1.0,
        environment_id="made-up",
        ranks=records,
    )
    machine = {"gpus": [{"name": gpu}] * len(samples) if gpu else []}
    environment = {"machine": machine, "nodes": {"here": machine}}
    return Run(path=path, environment=environment, results=(result,), warnings=())


def test_the_verdict_names_latency_and_the_best_bandwidth() -> None:
    rows = (
        make_row(1 << 20, 1e-3),
        make_row(8, 20e-6),
        make_row(1 << 26, 0.1),
        make_row(1 << 26, 1e-6, collective="broadcast"),
    )
    assert verdict(rows) == (
        "all_reduce over 2 ranks takes 20.0 µs at 8 B and reaches 1.05 GB/s bus bandwidth at 1.00 MiB "
        "(mean over iterations)."
    )


def test_without_all_reduce_the_first_collective_is_named() -> None:
    assert verdict((make_row(0, 0.02, collective="barrier"),)) == (
        "barrier over 2 ranks takes 20.0 ms at 0 B (mean over iterations)."
    )


def test_the_verdict_names_the_rank_that_all_wait_for() -> None:
    late = [make_row(1 << n, 3e-3, transfers_s=(1e-3,), last_rank=1) for n in (10, 20, 21)]
    assert verdict(tuple(late)).endswith("; ranks wait for rank 1.")
    calm = [make_row(1 << n, 3e-3) for n in (11, 12, 13)]
    assert "wait" not in verdict((*late, *calm))
    no_waits = [make_row(1 << n, 3e-3, transfers_s=(1e-3,)) for n in (10, 20)]
    assert "wait" not in verdict(tuple(no_waits))


def test_the_gate_takes_the_best_of_every_collective_that_sends_something() -> None:
    rows = (
        make_row(1000, 1e-3),
        make_row(1_000_000, 1e-3),
        make_row(2_000_000, 1e-3, collective="broadcast"),
        make_row(0, 1.0, collective="barrier"),
    )
    section, missed = gate_section(rows, 1e9)
    assert not missed
    assert section.lines[0].startswith("Gate passed")
    section, missed = gate_section(rows, 1.5e9)
    assert missed
    (line,) = section.lines
    assert line.startswith("Gate failed") and "1.50 GB/s" in line
    assert "all_reduce on 2 ranks 1.00 GB/s" in line
    assert "broadcast" not in line


def test_curves_are_by_collective_type_and_ranks() -> None:
    sizes = [1 << power for power in range(4, 24, 2)]
    rows = (
        *(make_row(size, 5e-6 + 2e-10 * size) for size in sizes),
        make_row(64, 1e-3, 2e-3, 90e-3, dtype="int8"),
        make_row(64, 1e-3, ranks=4),
        make_row(0, 1e-3, collective="barrier"),
    )
    document = curves_json(rows)
    assert document["schema_version"] == "2.0"
    first, *others = document["curves"]
    assert [(curve["collective"], curve["dtype"], curve["world_size"]) for curve in document["curves"]] == [
        ("all_reduce", "float32", 2),
        ("all_reduce", "int8", 2),
        ("all_reduce", "float32", 4),
    ]
    assert [size for size, _ in first["points"]] == sizes
    assert [time_s for _, time_s in first["points"]] == pytest.approx([5e-6 + 2e-10 * size for size in sizes])
    assert others[0]["points"] == [[64, pytest.approx(31e-3)]]  # the mean over iterations
    fitted = first["fits"]["a+bS"]
    assert fitted["coefficients"] == pytest.approx([5e-6, 2e-10])
    assert fitted["median_relative_error"] == pytest.approx(0, abs=1e-9)
    assert len(first["fits"]["a+bS+c*sqrt(S)"]["coefficients"]) == 3
    assert [other["fits"] for other in others] == [{"a+bS": None, "a+bS+c*sqrt(S)": None}] * 2


def test_results_hold_every_statistic() -> None:
    times = tuple(float(n) for n in range(1, 101))
    row = make_row(1 << 20, *times, transfers_s=(1.0,) * 100, last_rank=1, wrong=2)
    (entry,) = communication_json((row,))["all_reduce"]
    assert entry == {
        "size_bytes": 1 << 20,
        "time_s": 50.5,
        "algbw_bytes_per_s": pytest.approx((1 << 20) / 50.5),
        "busbw_bytes_per_s": pytest.approx((1 << 20) / 50.5),
        "wrong": 2,
        "dtype": "float32",
        "world_size": 2,
        "in_place": True,
        "iterations": 100,
        "p5_s": 6.0,
        "median_s": 50.5,
        "p95_s": 96.0,
        "p99_s": 100.0,
        "cv": pytest.approx(29.011 / 50.5, rel=1e-4),
        "two_modes": None,
        "transfer_s": 1.0,
        "wait_s": 49.5,
        "last_rank": 1,
        "trial_id": "",
        "backend": None,
        "link": None,
        "split_gpu": None,
        "reach": "inside a node",
    }


def test_a_root_makes_waiting_unknown() -> None:
    row = make_row(64, 2e-3, transfers_s=(1e-3,), collective="broadcast")
    (entry,) = communication_json((row,))["broadcast"]
    assert (entry["transfer_s"], entry["wait_s"]) == (None, None)


def test_the_first_screen_is_a_sentence_and_the_table() -> None:
    sentence, table = communication_sections(make_run({KEY: [1e-3]}, {KEY: [0.9e-3]}))
    assert sentence.lines == (
        "all_reduce over 2 ranks takes 1,000 µs at 1.00 MiB and reaches 1.05 GB/s bus bandwidth at 1.00 MiB "
        "(mean over iterations).",
    )
    assert table.lines[0] == "# Collective test starting: all_reduce_perf"
    assert table.details == (
        "all_reduce 1.00 MiB in place: mean 1,000 µs, p5 1,000 µs, median 1,000 µs, p95 1,000 µs, "
        "p99 1,000 µs, CV unknown, transfer 900 µs, wait 100 µs, rank 1 usually last",
    )


def test_a_shaped_link_is_shown_and_used_as_the_reference() -> None:
    run = make_run({KEY: [10e-3]}, {KEY: [10e-3]}, link="1gbit")
    lines = communication_sections(run)[0].lines
    assert "That is 84 % of the link of 1gbit at 1.00 MiB (source: the emulated link)." in lines
    assert any(line.startswith("Note: ") and "1gbit" in line for line in lines)


def test_a_gpu_is_compared_with_what_was_published() -> None:
    samples = [{KEY: [1.0]}] * 8
    line = communication_sections(make_run(*samples, gpu="NVIDIA H200"))[0].lines[1]
    assert line.startswith("That is 0 % of 8×H200 SXM at 1.00 MiB (source: ")
    for other in ("NVIDIA L4", "NVIDIA H200 NVL", "NVIDIA GH200 480GB"):
        line = communication_sections(make_run(*samples, gpu=other))[0].lines[1]
        assert line == (
            "Not compared with what the hardware should deliver; unknown: the paths between the GPUs of here."
        )


def test_a_gpu_without_published_figures_is_compared_with_its_links() -> None:
    key = f"all_reduce/in/{1 << 26}"
    run = make_run(*[{key: [(1 << 26) / 120e9]}] * 2, gpu=A100)
    mesh = Topology(
        gpus=gpu_sites(2, A100, nvlink_version=3, nvlink_count=12), gpu_paths=paths_between(2, "NV12")
    )
    run = dataclasses.replace(run, environment=environment_of({"here": mesh}))
    line = communication_sections(run)[0].lines[1]
    assert line.startswith(
        "That is 50 % of what 12 NVLink 3 links per GPU should carry at 64.0 MiB (source: "
    )


def test_two_modes_are_pointed_out_with_a_likely_cause() -> None:
    times = [0.25e-3] * 26 + [4e-3] * 24
    lines = communication_sections(make_run({KEY: times}, {KEY: times}, threads_per_rank=1))[0].lines
    assert lines[1] == (
        "Two modes at 1 size: all_reduce of 1.00 MiB takes 250 µs or 4,000 µs (48 % of iterations)."
    )
    assert lines[2].startswith("Each rank has one core for compute and for gloo's thread")
    free = communication_sections(make_run({KEY: times}, {KEY: times}, threads_per_rank=4))[0].lines
    assert len(free) == len(lines) - 1


def pairs_of(rates: dict[str, float]) -> list[dict[str, list[float]]]:
    """Samples of four ranks: every pair's bytes per second."""
    return [
        {f"pair/{pair}/1000000": [1e6 / rate] for pair, rate in rates.items() if str(rank) in pair}
        for rank in range(4)
    ]


ALIKE = {"0-1": 1e8, "0-2": 1e8, "0-3": 1e8, "1-2": 1e8, "1-3": 1e8, "2-3": 1e8}


@pytest.mark.parametrize(
    ("slow", "line"),
    [
        ({}, "No pair is slower than the others."),
        (
            {"0-2": 1e7, "1-2": 1e7, "2-3": 1e7},
            "Slow: rank 2's link at 10.0 MB/s, others at 100 MB/s.",
        ),
        (
            {"1-3": 1e7},
            "Slow: the link between ranks 1 and 3 at 10.0 MB/s, others at 100 MB/s.",
        ),
    ],
)
def test_the_bad_link_is_named(slow: dict[str, float], line: str) -> None:
    (section,) = communication_sections(make_run(*pairs_of({**ALIKE, **slow})))
    assert section.lines == (line,)
    assert section.table is not None
    assert section.table.rows[0] == ("0 ↔ 1", "100 MB/s")
    assert len(section.table.rows) == 6


def test_pairs_are_shown_with_their_paths_and_compared_within_a_kind() -> None:
    rates = {pair: 2e9 if pair in ("0-1", "2-3") else 1e8 for pair in ALIKE}
    run = make_run(*pairs_of(rates), gpu="NVIDIA H100 NVL")
    run = dataclasses.replace(run, environment=environment_of({"here": two_sockets_of_pairs()}))
    (section,) = communication_sections(run)
    assert section.lines == ("No pair is slower than the others with the same kind of path.",)
    assert section.table is not None and section.table.columns == ("ranks", "path", "per direction")
    assert section.table.rows[:2] == (("0 ↔ 1", "NV12", "2.00 GB/s"), ("0 ↔ 2", "SYS", "100 MB/s"))
    assert [entry["path"] for entry in pairs_json(run)][:2] == ["NV12", "SYS"]
    assert pairs_verdict(run) == (
        "6 pairs of ranks: NV12 median 2.00 GB/s in each direction, slowest (0 and 1) 2.00 GB/s; "
        "SYS median 100 MB/s in each direction, slowest (0 and 2) 100 MB/s."
    )


def between_nodes(slow: dict[str, float]) -> Run:
    """Four nodes of one rank each."""
    run = make_run(*pairs_of({**ALIKE, **slow}))
    for rank in range(4):
        run.results[0].ranks[rank] = dataclasses.replace(run.results[0].ranks[rank], host=f"n{rank}")
    return run


def test_on_several_nodes_the_bad_node_is_named() -> None:
    run = between_nodes({"0-2": 1e7, "1-2": 1e7, "2-3": 1e7})
    (section,) = communication_sections(run)
    assert section.title == "Pairs of nodes, all ranks of both at once"
    assert section.lines == ("Slow: node n2's link at 10.0 MB/s, others at 100 MB/s.",)
    assert section.table is not None and section.table.rows[0] == ("n0 ↔ n1", "100 MB/s")
    assert pairs_verdict(run) == (
        "6 pairs of nodes: median 55.0 MB/s in each direction, slowest (n0 and n2) 10.0 MB/s."
    )
    assert pairs_json(run)[0]["nodes"] == ["n0", "n1"]


def test_of_many_nodes_the_slowest_are_shown() -> None:
    nodes = 10
    rates = {(low, high): 1e8 + high for low in range(nodes) for high in range(low + 1, nodes)}
    samples: list[dict[str, list[float]]] = [
        {
            f"pair/{low}-{high}/1000000": [1e6 / rate]
            for (low, high), rate in rates.items()
            if rank in (low, high)
        }
        for rank in range(nodes)
    ]
    run = make_run(*samples)
    run.results[0].ranks[:] = [
        dataclasses.replace(record, host=f"n{record.rank}") for record in run.results[0].ranks
    ]
    (section,) = communication_sections(run)
    assert section.table is not None and len(section.table.rows) == 28
    assert section.lines[0] == "The slowest 28 of 45 are shown; results.json has all."


def test_one_pair_has_nothing_to_be_compared_with() -> None:
    samples = {"pair/0-1/1000000": [0.01]}
    (section,) = communication_sections(make_run(samples, samples))
    assert section.lines == ("Only one pair exists, so there is nothing to compare it with.",)


def test_what_nccl_chose_is_read_from_the_logs_of_the_untimed_launch(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "abc-0-0.log").write_text(
        "h:1:1 [0] NCCL INFO Using network Socket\n"
        "h:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
    )
    (tmp_path / "logs" / "abc-0-1.log").write_text("h:2:2 [0] NCCL INFO 2 coll channels, 2 p2p channels\n")
    (tmp_path / "logs" / "other-0-0.log").write_text("h:1:1 [0] NCCL INFO 99 coll channels\n")
    (section,) = communication_sections(make_run({}, {}, path=tmp_path, purpose="nccl_log"))
    assert section.title == "What NCCL chose on 2 ranks"
    assert section.lines == (
        "Transport  : NET/Socket",
        "Network    : Socket",
        "Channels   : 2",
        "Algorithms : unknown",
        "NCCL uses sockets, which are much slower than NVLink, PCIe or InfiniBand.",
    )


def test_what_nccl_chose_is_also_read_from_the_logs_of_attached_ranks(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "abc-0-0.log").write_text(
        "h:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_4:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "h:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1/GDRDMA\n"
    )
    *_, section = communication_sections(make_run({}, {}, path=tmp_path, backend="nccl"))
    assert section.title == "What NCCL chose on 2 ranks"
    assert "Transport  : NET/IB/GDRDMA" in section.lines
    assert any(line.startswith("Cards      : mlx5_4 on ") for line in section.lines)


def test_the_next_step_needs_a_result() -> None:
    following = next_after_communication(make_run({}, {}))
    assert following is not None
    assert following.command == "scalescope scale --world-size 1,2 --device cpu"
    nothing = Run(path=Path("unused"), environment={}, results=(), warnings=())
    assert next_after_communication(nothing) is None
