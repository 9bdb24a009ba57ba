"""The output of `memory`: the sentence, the cells, the savings and the limits."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.validity import judge
from scalescope.report.memory.sections import memory_brief, memory_sections, next_after_memory
from scalescope.report.numbers import data_size
from scalescope.results.result import RankRecord, Result
from scalescope.results.run import Run
from tests.unit.analysis.memory.test_rows import made

MIB = 1 << 20
PARTS = ("parameters", "buffers", "gradients", "optimizer", "activations", "temporary", "inputs")


def run_of(*results: Result) -> Run:
    machine = {"machine": {"memory_bytes": 1 << 30}}
    return Run(path=Path("x"), environment=machine, results=results, warnings=())


def counters(batch: int) -> dict[str, Any]:
    sizes = {"parameters": 10 * MIB, "gradients": 10 * MIB, "activations": batch * MIB}
    whole = {name: sizes.get(name, 0) for name in PARTS}
    return {
        **{f"measured/{name}": size for name, size in whole.items() if name != "temporary"},
        **{f"forecast/as_asked/{name}": size for name, size in whole.items()},
        **{f"forecast/now/{name}": size for name, size in whole.items()},
        **{f"forecast/checkpointing/{name}": size for name, size in {**whole, "temporary": MIB}.items()},
        "forecast/bf16/problem": "TypeError: no",
        "forecast/gathered": 5 * MIB,
        "forecast/other_ways_batch": batch,
        "measured/peak": (20 + 4 * batch) * MIB,
    }


RUN = run_of(*(made(batch, counters(batch), precision="fp32") for batch in (1, 2, 4)))


def test_the_first_line_is_the_verdict() -> None:
    (line,) = memory_sections(RUN)[0].lines
    assert line == (
        "Each sample takes 4.00 MiB (1.00 MiB of it activations) on top of 20.0 MiB; the largest batch that "
        "fits in 1.00 GiB is 251 (calculated; to try it: --memory-limit)."
    )
    assert memory_brief(RUN)[0].lines == (line,)
    following = next_after_memory(RUN)
    assert following is not None
    assert following.argv[:2] == ("scalescope", "memory")
    assert following.argv[-3:] == ("--search", "--memory-limit", "4GiB")


def test_measured_and_forecast_are_shown_together() -> None:
    table = memory_sections(RUN)[1].table
    assert table is not None
    row = dict(zip(table.columns, table.rows[2], strict=True))
    assert (row["batch"], row["params"], row["peak"], row["forecast"]) == (
        "4",
        "10.0 MiB",
        "36.0 MiB",
        "24.0 MiB",
    )
    assert row["difference"] == "—"  # too small to be compared on the CPU
    assert row["temporary"] == "—"  # not traced
    assert any("Forecasts below 64.0 MiB are not compared" in line for line in memory_sections(RUN)[-1].lines)


@pytest.mark.parametrize(("device", "batch", "difference"), [("cuda", 4, "-33.3 %"), ("cpu", 60, "-69.2 %")])
def test_the_difference_of_a_forecast_is_shown_where_it_says_something(
    device: str, batch: int, difference: str
) -> None:
    run = run_of(made(batch, counters(batch), precision="fp32", device=device))
    table = memory_sections(run)[1].table
    assert table is not None
    assert dict(zip(table.columns, table.rows[0], strict=True))["difference"] == difference
    assert not any("are not compared" in line for line in memory_sections(run)[-1].lines)


def test_no_more_samples_are_proposed_than_there_are() -> None:
    few = {"data/samples_per_rank": 100}
    run = run_of(*(made(batch, counters(batch) | few, precision="fp32") for batch in (1, 2, 4)))
    (line,) = memory_sections(run)[0].lines
    assert "all 100 samples per rank of the data set fit in 1.00 GiB (calculated; " in line


def test_savings_name_what_is_unknown_and_what_costs() -> None:
    section = memory_sections(RUN)[2]
    assert section.table is not None
    cells = {row[0]: row[1:] for row in section.table.rows}
    assert cells["FSDP (at least) over 2 ranks"] == ("5.00 MiB", "21 %")
    assert cells["bf16 (autocast)"] == ("unknown", "—")
    assert cells["activation checkpointing"] == ("costs 1.00 MiB", "-4 %")
    assert section.details == ("bf16 (autocast): unknown: TypeError: no",)


def test_the_limits_of_resident_memory_are_stated() -> None:
    assert any("resident memory" in line for line in memory_sections(RUN)[-1].lines)


def test_out_of_memory_is_a_row_and_an_answer() -> None:
    run = run_of(made(1, counters(1)), made(2, status="oom"))
    sections = memory_sections(run)
    assert sections[0].lines[0].endswith("the largest batch that fits in 1.00 GiB is 1 (tried).")
    assert sections[1].table is not None
    assert "out of memory" in sections[1].table.rows[1]


def test_a_run_without_measurements_is_reported_as_such() -> None:
    assert memory_sections(run_of())[0].lines == ("No measurement finished, so there is nothing to show.",)
    assert memory_brief(run_of()) == ()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "0.999 KiB"),
        (1536, "1.50 KiB"),
        (12.3 * MIB, "12.3 MiB"),
        (139 << 30, "139 GiB"),
        (5000 << 40, "5,000 TiB"),
    ],
)
def test_sizes_have_three_digits(size: float, text: str) -> None:
    assert data_size(size) == text


def test_a_rank_that_measured_nothing_makes_the_result_invalid() -> None:
    trial = Trial(settings={"benchmark": "memory"})
    records = [RankRecord(rank=0, host="h", device="d", placement="p", counters={"measured/peak": None})]
    assert judge(trial, records).status == "ok"
    with_missing = [*records, RankRecord(rank=1, host="h", device="d", placement="p")]
    assert judge(trial, with_missing).reason == "rank 1 measured no memory"


def test_columns_that_add_up_to_more_than_the_peak_are_explained_and_others_not() -> None:
    more = "they add up to more than the peak"
    assert not any(more in line for line in memory_sections(RUN)[-1].lines)
    on_gpu = {**counters(4), "measured/peak": 21 * MIB, "trace/temporary": MIB, "measured/library": 65 * MIB}
    sections = memory_sections(run_of(made(4, on_gpu, device="cuda")))
    assert any(more in line for line in sections[-1].lines)
    assert any(line.startswith("temporary: ") for line in sections[-1].lines)
    assert sections[1].table is not None
    assert (
        dict(zip(sections[1].table.columns, sections[1].table.rows[0], strict=True))["library"] == "65.0 MiB"
    )


def test_the_forecast_of_fsdp_is_an_upper_bound() -> None:
    run = run_of(made(4, counters(4), strategy="fsdp", world_size=2))
    table = memory_sections(run)[1].table
    assert table is not None
    assert dict(zip(table.columns, table.rows[0], strict=True))["forecast"] == "at most 19.0 MiB"


def test_savings_stand_at_the_batch_they_were_forecast_for() -> None:
    large = {**counters(4), "forecast/other_ways_batch": 900}
    section = memory_sections(run_of(made(4, large, precision="fp32")))[2]
    assert section.title == "ways to save memory at batch 900 · forecast, each on its own, peak 24.0 MiB"


def test_a_batch_larger_than_the_data_is_marked() -> None:
    run = run_of(made(1, counters(1)), made(64, {**counters(4), "data/samples": 40}))
    sections = memory_sections(run)
    assert sections[1].table is not None and sections[1].table.rows[1][0] == "64 (40 samples)"
    assert sections[0].lines[0].endswith("all 40 samples per rank of the data set fit in 1.00 GiB (tried).")
