"""Figure, table, sentence and JSON of a waterfall say the same; the sentence about a whole table."""

import json

import pytest
from hypothesis import given, settings

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import ScalingRow, scaling_rows
from scalescope.analysis.scaling.waterfall import (
    COMMUNICATION,
    CONTENTION,
    NOT_SEPARATED,
    NOT_SIGNIFICANT,
    WRAPPER,
    Waterfall,
)
from scalescope.analysis.statistics import Estimate
from scalescope.report.chapters.waterfall import waterfall_panel
from scalescope.report.render.painting import segment_ends
from scalescope.report.scaling.sections import verdict
from scalescope.report.scaling.waterfall import (
    in_ranks,
    sentence,
    sentence_segments,
    waterfall_json,
    waterfall_section,
)
from tests.builders.known_runs import make_run, make_trials
from tests.builders.results import make_configuration, make_term, make_waterfall, waterfalls
from tests.simulated.launcher import CostModel

TWO_DECIMALS = 0.005


def row_of(waterfall: Waterfall) -> ScalingRow:
    return ScalingRow(
        configuration=make_configuration(waterfall.trial, waterfall.step_s),
        baseline_ranks=1,
        speedup=Estimate(waterfall.delivered),
        efficiency=Estimate(waterfall.delivered / waterfall.ranks),
        wrapped=None,
        efficiency_of_wrapped=None,
        communication_s=None,
        waterfall=waterfall,
    )


def number(text: str) -> float:
    """A cell's number; what is too small for two decimals is 0."""
    return 0.0 if text in ("< 0.01", "> −0.01") else float(text.replace("−", "-").replace(",", ""))


@given(waterfalls())
@settings(max_examples=30)
def test_figure_table_sentence_and_json_agree(waterfall: Waterfall) -> None:
    values = {segment.name: segment.value for segment in waterfall.segments}
    stored = json.loads(json.dumps(waterfall_json(waterfall)))["segments"]
    assert {segment["name"]: segment["value"] for segment in stored} == values

    panel = waterfall_panel([(row_of(waterfall), waterfall)])
    assert {part.label: part.y[0] for part in panel.series if part.role != "ideal"} == values
    drawn = {
        part.label: (left[0], right[0])
        for part, (left, right) in zip(panel.series, segment_ends(panel), strict=True)
        if part.role != "ideal"
    }
    for segment in stored:
        assert drawn[segment["name"]] == pytest.approx((segment["begin"], segment["end"]), abs=1e-9)

    table = waterfall_section(waterfall).table
    assert table is not None
    cells = {row[0]: number(row[2]) for row in table.rows}
    assert cells.pop("total") == waterfall.ranks
    assert cells == pytest.approx(values, abs=TWO_DECIMALS + 1e-9)


@given(waterfalls())
@settings(max_examples=30)
def test_the_sentence_lists_significant_terms_only(waterfall: Waterfall) -> None:
    listed = {segment.name: segment.value for segment in sentence_segments(waterfall)}
    expected = {term.name for term in waterfall.terms_that_are("significant")}
    with_interval = {
        name for name in listed if (term := waterfall.term(name)) and term.significance != "no_interval"
    }
    assert with_interval == expected
    text = sentence(waterfall)
    for name, value in listed.items():
        if name != NOT_SEPARATED:
            assert f"{in_ranks(value)} {name}" in text
    hidden = {term.name for term in waterfall.terms_that_are("not_significant")}
    assert not any(name in text for name in hidden)


def test_losses_that_may_be_noise_have_one_place_in_the_sentence() -> None:
    noise = make_term(CONTENTION, 0.08, 0.2, 2)
    sure = make_waterfall(2, 1.0, (make_term(COMMUNICATION, 0.92, 0.1, 2), noise))
    assert sentence(sure).endswith("; 1.00 lost: 0.92 communication, 0.08 not significant.")
    assert sentence(make_waterfall(2, 1.92, (noise,))).endswith("; 0.08 lost, none of it significant.")


def test_ranks_that_are_faster_than_the_ideal_name_the_reason() -> None:
    faster = make_waterfall(2, 2.2, (make_term(CONTENTION, -0.3, 0.1, 2), make_term(WRAPPER, 0.1, 0.05, 2)))
    assert sentence(faster).endswith("; 0.20 more than the ideal: −0.30 contention, 0.10 wrapper.")


def test_a_single_launch_is_marked() -> None:
    single = make_waterfall(2, 1.0, (make_term(COMMUNICATION, 1.0, None, 2),))
    assert sentence(single).endswith("1.00 communication (one launch, no intervals).")
    assert "no intervals" in waterfall_panel([(row_of(single), single)]).names[0]


def test_the_ideal_is_drawn_at_the_number_of_ranks() -> None:
    waterfall = make_waterfall(4, 4.2, (make_term(CONTENTION, -0.2, 0.4, 4),))
    panel = waterfall_panel([(row_of(waterfall), waterfall)])
    (ideal,) = [part for part in panel.series if part.role == "ideal"]
    (noise,) = [part for part in panel.series if part.label == NOT_SIGNIFICANT]
    assert ideal.y == (4.0,)
    assert (noise.begin, noise.role) == ((pytest.approx(-0.2),), "not significant")


def sentence_of_table(batches: list[int], model: CostModel, *, launches: int) -> str:
    run = make_run(make_trials(world_size=[1, 2], batch_size=batches), launches, model)
    return verdict(scaling_rows(configurations(run.results)))


def test_both_thresholds_at_one_batch_are_one_clause() -> None:
    fast = CostModel(fixed_s=0.01, per_sample_s=0.001)
    assert sentence_of_table([16, 32], fast, launches=3).endswith(
        "; 80 % and 90 % efficiency from batch 16 on."
    )
    once = sentence_of_table([16, 32], fast, launches=1)
    assert once.endswith("; 80 % and 90 % efficiency from batch 16 on (not certain).")


def test_thresholds_at_two_batches_are_two_clauses() -> None:
    slow = CostModel(fixed_s=0.0, per_sample_s=0.001, exposed_comm_s={2: 0.004})
    text = sentence_of_table([16, 64], slow, launches=1)
    assert text.endswith(
        "; 80 % efficiency from batch 16 on (not certain), 90 % from batch 64 on (not certain)."
    )
