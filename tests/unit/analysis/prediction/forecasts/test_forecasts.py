"""Single changes ranked, how many ranks pay off, and the exact binomial interval."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scalescope.analysis.prediction.answer import Change, PredictionAnswer, what_if
from scalescope.analysis.prediction.forecast import (
    LEAST_MARGINAL,
    Prediction,
    Range,
    forecast,
    most_worth,
    worth_of,
)
from scalescope.analysis.prediction.intervals import binomial_interval
from scalescope.report.prediction.sections import prediction_section, worth_line
from tests.builders.profiles import made_inputs


def changes_of(**options: object) -> dict[str, Change]:
    inputs = made_inputs(**options)  # type: ignore[arg-type]
    return {change.name: change for change in what_if(inputs, inputs.job.setup(8))}


def test_every_gain_is_of_its_own_change_alone() -> None:
    inputs = made_inputs()
    setup = inputs.job.setup(8)
    change = changes_of()["gradients sent in bf16"]
    now = forecast(inputs, setup).samples_per_s.value
    then = forecast(inputs, dataclasses.replace(setup, comm_hook="bf16")).samples_per_s.value
    assert change.gain == pytest.approx(then / now - 1.0)
    assert (change.setting, change.flags) == ("comm_hook", ("--comm-hook", "bf16"))
    assert not change.changes_job
    changes = changes_of()
    assert changes["a network twice as fast"].gain >= changes["gradients sent in bf16"].gain
    assert changes["a network twice as fast"].flags == ()


def test_larger_batches_need_a_line_and_the_largest_gain_comes_first() -> None:
    assert not any(name.startswith("batch") for name in changes_of())
    larger = changes_of(batches=(32, 64))["batch 128 per rank"]
    assert larger.changes_job and larger.flags == ("--batch-size", "128")
    assert changes_of()["4 micro-batches per step"].changes_job
    gains = [change.gain for change in changes_of(batches=(32, 64)).values()]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0.0


def test_what_is_so_already_is_not_proposed() -> None:
    inputs = made_inputs()
    setup = dataclasses.replace(inputs.job.setup(8), comm_hook="bf16", bucket_cap_mb=25.0)
    names = {change.name for change in what_if(inputs, setup)}
    assert "gradients sent in bf16" not in names
    assert "buckets of 25 MiB" not in names and "buckets of 5 MiB" in names


# how many ranks pay off, and what samples cost


def row(ranks: int, efficiency: float) -> Prediction:
    inputs = made_inputs()
    made = forecast(inputs, inputs.job.setup(ranks))
    share = Range(value=efficiency, low=efficiency, high=efficiency)
    rate = Range(value=1000.0 * ranks * efficiency, low=1.0, high=1.0)
    return dataclasses.replace(made, efficiency=share, samples_per_s=rate)


def test_added_ranks_are_held_against_ranks_alone() -> None:
    answers = worth_of([row(2, 0.9), row(8, 0.6), row(4, 0.8)])
    assert [worth.ranks for worth in answers] == [2, 4, 8]
    expected = [(1.8 - 1.0) / 1, (3.2 - 1.8) / 2, (4.8 - 3.2) / 4]
    assert [worth.marginal for worth in answers] == pytest.approx(expected)
    assert most_worth(answers) == 4


def test_only_ranks_that_pay_off_are_worth_it() -> None:
    answers = worth_of([row(2, 0.73), row(8, 0.68), row(64, 0.66), row(1024, 0.3)])
    assert [worth.beyond for worth in answers] == [1, 1, 8, 64]
    assert answers[0].marginal < LEAST_MARGINAL < answers[1].marginal
    assert most_worth(answers) == 64
    assert most_worth(worth_of([row(2, 0.9), row(4, 0.5), row(6, 0.52)])) == 2
    assert most_worth(worth_of([row(2, 0.6), row(4, 0.55)])) is None
    assert most_worth(worth_of([row(2, 0.4)])) is None
    assert most_worth(worth_of([row(1, 1.0)])) == 1


@given(efficiencies=st.lists(st.floats(0.05, 1.2), min_size=1, max_size=6), is_near=st.booleans())
def test_the_table_and_the_sentence_agree(efficiencies: list[float], is_near: bool) -> None:
    """The sentence names the last row whose added ranks are shown to deliver at least half."""
    values = [0.5 + (value - 0.6) / 100 for value in efficiencies] if is_near else efficiencies
    sizes = [2**power for power in range(1, len(values) + 1)]
    rows = [row(size, value) for size, value in zip(sizes, values, strict=True)]
    answer = PredictionAnswer(inputs=made_inputs(), predictions=tuple(rows), worth=worth_of(rows))
    table = prediction_section(answer).table
    assert table is not None
    shown = [int(cells[table.columns.index("added ranks")].split()[0]) for cells in table.rows]
    paying = [size for size, percent in zip(sizes, shown, strict=True) if percent >= 50]
    line = worth_line(answer)
    if not paying:
        assert line.startswith("None of these numbers of ranks is worth it")
    elif paying[-1] == sizes[-1]:
        assert line.startswith(f"All {paying[-1]} ranks are worth it")
    else:
        assert line.startswith(f"Worth it up to {paying[-1]} ranks")


def test_the_cost_is_of_all_gpus() -> None:
    (worth,) = worth_of([row(8, 0.5)], gpu_hour_price=3.0)
    hours = 1e6 / 4000.0 / 3600.0
    assert worth.cost_per_million == pytest.approx(hours * 8 * 3.0)
    assert worth_of([row(8, 0.5)])[0].cost_per_million is None


# the exact binomial interval


def test_the_interval_of_a_proportion_is_clopper_and_pearsons() -> None:
    for successes, count in ((0, 5), (5, 5), (9, 10), (109, 120)):
        expected = stats.binomtest(successes, count).proportion_ci(0.95, "exact")
        interval = binomial_interval(successes, count)
        assert interval.value == successes / count
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
