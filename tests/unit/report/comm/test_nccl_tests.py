"""nccl-tests' table and JSON: written as its users know them, and read back from either."""

import json
from typing import Any

import pytest

from scalescope.analysis.collectives import CollectiveRow
from scalescope.errors import BadInput
from scalescope.report.comm.nccl_tests import ImportedRow, parse, table_text, to_json
from tests.builders.results import make_row

# As all_reduce_perf prints it; the last line has wrong elements, in the exponent form of %g.
PRINTOUT = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 4294967296 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node1 device  0 [0000:0f:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4712 on      node1 device  1 [0000:2d:00] NVIDIA H200
#  Rank  2 Group  0 Pid   4713 on      node1 device  2 [0000:44:00] NVIDIA H200
#  Rank  3 Group  0 Pid   4714 on      node1 device  3 [0000:5b:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    23.51    0.00    0.00       0    22.90    0.00    0.00       0
     1048576        524288      half     sum      -1    39.82   26.33   39.50     N/A    39.45   26.58   39.87     N/A
  4294967296    1073741824     float     sum      -1  13127.4  327.18  490.77       0  13118.0  327.41  491.12 1.04858e+06
# Out of bounds values : 1 FAILED
# Avg bus bandwidth    : 176.877
#
# Collective test concluded: all_reduce_perf
"""  # noqa: E501 - its lines are that long

THEIR_JSON: dict[str, Any] = {
    "version": 1,
    "args": ["/opt/nccl-tests/build/alltoall_perf", "-b", "8", "-J", "out.json"],
    "env": ["HOME=/root"],
    "nccl_version": 22803,
    "config": {
        "nthreads": 1,
        "ngpus": 2,
        "minimum_bytes": 8,
        "devices": [
            {"rank": 0, "group": 0, "hostname": "node1", "device": 0, "device_info": "NVIDIA H200"},
            {"rank": 2, "group": 0, "hostname": "node1", "device": 2, "device_info": "NVIDIA H200"},
        ],
    },
    "results": [
        {
            "size": 1048576,
            "count": 65536,
            "type": "float",
            "redop": "none",
            "root": "    -1",
            "out_of_place": {"time": 40.5, "alg_bw": 25.9, "bus_bw": 19.4, "nwrong": 0.0},
            "in_place": {"time": 41.5, "alg_bw": 25.3, "bus_bw": 19.0, "nwrong": None},
            "actual_iterations": 20,
            "experiment_name": "",
        },
        {
            "size": 2097152,
            "count": 131072,
            "type": "bfloat16",
            "redop": "none",
            "root": "    -1",
            "out_of_place": None,
            "in_place": {"cpu_time": 80.0, "alg_bw": 26.2, "bus_bw": 19.7, "nwrong": 3.0},
        },
    ],
    "out_of_bounds": {"count": 0, "okay": True},
}


def as_imported(row: CollectiveRow) -> ImportedRow:
    return ImportedRow(
        collective=row.collective,
        ranks=row.ranks,
        dtype=row.dtype,
        size_bytes=row.size_bytes,
        in_place=row.in_place,
        time_s=pytest.approx(row.time_s, rel=1e-9),
        wrong=row.wrong,
    )


ROWS = (
    make_row(8, 23.51e-6, in_place=False),
    make_row(8, 22.9e-6),
    make_row(1 << 26, 123.456789, wrong=3),
    make_row(1 << 20, 2e-3, dtype="bfloat16", ranks=4, collective="all_gather", in_place=False),
    make_row(1 << 20, 2.5e-3, dtype="bfloat16", ranks=4, collective="all_gather"),
    make_row(1 << 20, 4e-3, ranks=8, collective="all_to_all", in_place=False),
    make_row(0, 17.25e-6, ranks=8, collective="barrier", in_place=False),
)


def test_our_table_reads_back_as_the_same_rows() -> None:
    assert list(parse(table_text(ROWS), "a")) == list(map(as_imported, ROWS))


def test_our_json_reads_back_as_the_same_rows() -> None:
    rows = parse(json.dumps(to_json(ROWS)), "a.json")
    assert sorted(rows, key=str) == sorted(map(as_imported, ROWS), key=str)


def test_the_table_has_nccl_tests_lines() -> None:
    lines = table_text([make_row(1 << 20, 1e-3, ranks=4), make_row(4, 5e-6, ranks=4, wrong=2)]).splitlines()
    assert lines[0] == "# Collective test starting: all_reduce_perf"
    assert lines[-1] == "# Collective test concluded: all_reduce_perf"
    heading = next(line for line in lines if "algbw" in line)
    assert heading.split() == [
        *("#", "size", "count", "type", "redop", "root"),
        *("time", "algbw", "busbw", "#wrong") * 2,
    ]
    small, large = (line.split() for line in lines if not line.startswith("#"))
    assert small == ["4", "1", "float", "sum", "-1", *["N/A"] * 4, "5.00", "0.00", "0.00", "2"]
    assert large == ["1048576", "262144", "float", "sum", "-1", *["N/A"] * 4, "1000.00", "1.05", "1.57", "0"]
    assert "# Out of bounds values : 2 FAILED" in lines
    average = (1.048576 * 1.5 + 4 / 5e-6 / 1e9 * 1.5) / 2
    assert f"# Avg bus bandwidth    : {average:g}" in lines


def test_a_table_without_wrong_elements_is_ok() -> None:
    assert "# Out of bounds values : 0 OK" in table_text([make_row(4, 5e-6)])


def test_numbers_stand_below_their_headings() -> None:
    lines = table_text([make_row(1 << 20, 1e-3, in_place=False), make_row(1 << 20, 1e-3)]).splitlines()
    heading = next(line for line in lines if "algbw" in line)
    (row,) = (line for line in lines if not line.startswith("#"))
    assert row.index("1048576") + len("1048576") == heading.index("size") + len("size")
    assert row.index("float") + len("float") == heading.index("type") + len("type")
    assert row.index("1000.00") + len("1000.00") == heading.index("time") + len("time")


def test_every_collective_and_type_is_a_block_of_its_own() -> None:
    text = table_text(
        [make_row(8, 1e-6), make_row(8, 1e-6, dtype="int8"), make_row(8, 1e-6, collective="reduce")]
    )
    assert text.count("# Collective test starting: all_reduce_perf") == 2
    assert text.count("# Collective test starting: reduce_perf") == 1


def test_a_real_printout_is_read() -> None:
    rows = parse(PRINTOUT, "p.txt")
    assert {(row.collective, row.ranks) for row in rows} == {("all_reduce", 4)}
    assert [(row.dtype, row.size_bytes, row.in_place, row.wrong) for row in rows] == [
        ("float32", 8, False, 0),
        ("float32", 8, True, 0),
        ("float16", 1 << 20, False, 0),
        ("float16", 1 << 20, True, 0),
        ("float32", 1 << 32, False, 0),
        ("float32", 1 << 32, True, 1048580),
    ]
    assert [row.time_s for row in rows] == pytest.approx(
        [23.51e-6, 22.9e-6, 39.82e-6, 39.45e-6, 13127.4e-6, 13118e-6]
    )


def test_printouts_one_after_another_keep_their_ranks_and_names() -> None:
    other = PRINTOUT.replace("all_reduce_perf", "alltoall_perf").replace("#  Rank  3", "#  Node  3")
    rows = parse(PRINTOUT + other + PRINTOUT, "p.txt")
    assert [(row.collective, row.ranks) for row in rows[::6]] == [
        ("all_reduce", 4),
        ("all_to_all", 3),
        ("all_reduce", 4),
    ]


def test_a_time_of_day_at_the_end_of_a_line_is_left_out() -> None:
    lines = [f"{line}  2026-01-15 10:30:00" for line in PRINTOUT.splitlines() if not line.startswith("#")]
    assert len(parse("\n".join(lines), "p.txt")) == 6


def test_an_old_printout_does_not_name_its_collective() -> None:
    old = "\n".join(line for line in PRINTOUT.splitlines() if "Collective test" not in line)
    assert parse(old, "p.txt")[0].collective == "all_reduce"
    assert parse(old, "p.txt", "broadcast")[0].collective == "broadcast"


def test_a_table_without_ranks_leaves_their_number_unknown() -> None:
    (line,) = (line for line in PRINTOUT.splitlines() if line.startswith("           8"))
    assert {row.ranks for row in parse(line, "p.txt")} == {None}


def test_their_json_is_read() -> None:
    rows = parse(json.dumps(THEIR_JSON), "out.json")
    assert {(row.collective, row.ranks) for row in rows} == {("all_to_all", 4)}
    assert [(row.dtype, row.size_bytes, row.in_place, row.wrong) for row in rows] == [
        ("float32", 1 << 20, False, 0),
        ("float32", 1 << 20, True, 0),
        ("bfloat16", 2 << 20, True, 3),
    ]
    assert [row.time_s for row in rows] == pytest.approx([40.5e-6, 41.5e-6, 80e-6])


def test_their_json_without_a_config_does_not_know_its_ranks() -> None:
    bare = {"results": THEIR_JSON["results"]}
    rows = parse(json.dumps(bare), "o", "broadcast")
    assert {(row.collective, row.ranks) for row in rows} == {("broadcast", None)}


def test_a_file_that_does_not_name_its_collective_is_not_guessed() -> None:
    with pytest.raises(BadInput, match="add --collective"):
        parse(json.dumps({"results": THEIR_JSON["results"]}), "o")
    gathered = "  8388608  2097152  float  none  -1  20.0  412.98  361.36  0  20.0  412.98  361.36  0"
    with pytest.raises(BadInput, match="add --collective"):
        parse(gathered, "o")


def with_entry(**changes: Any) -> str:
    return json.dumps({"results": [{**THEIR_JSON["results"][0], **changes}]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage\n" * 20,
        "a b c d e f g h i j k l m\n",
        "{",
        "{}",
        '{"results": null}',
        '{"results": []}',
        '{"results": [1]}',
        '{"results": {"a": 1}}',
        "[]",
        "[" * 100_000,
        '{"a":' * 100_000,
        with_entry(type="quaternion"),
        with_entry(size="big"),
        with_entry(size=None),
        with_entry(in_place=7),
        with_entry(in_place={"nwrong": 0}),
        with_entry(in_place={"time": "fast"}),
        with_entry(in_place={"time": 0}),
        with_entry(in_place={"time": -1}),
        with_entry(in_place={"time": float("nan")}),
        with_entry(in_place={"time": 1, "nwrong": float("inf")}),
        with_entry(collective="gather"),
        with_entry(ranks="many"),
        *(PRINTOUT.replace("23.51", time) for time in ("fast", "0.00", "-5.0", "nan", "inf")),
        PRINTOUT.replace("           8 ", f" {'9' * 5000} "),
        "".join(f"{line}\n" for line in PRINTOUT.splitlines() if line.startswith("#")),
        PRINTOUT.replace("1.04858e+06", "some"),
        PRINTOUT.replace("all_reduce_perf", "hypercube_perf"),
    ],
)
def test_garbage_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text, "file")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
