"""A run that contradicts what is predicted for it."""

import pytest

from scalescope.analysis.prediction.answer import Contradiction, is_contradicted
from scalescope.analysis.prediction.forecast import Range
from scalescope.report.prediction.sections import contradiction_line

PREDICTED = Range(value=0.097, low=0.086, high=0.111)


@pytest.mark.parametrize(
    ("measured_s", "predicted_s", "expected"),
    [
        (0.441, PREDICTED, True),
        (0.060, PREDICTED, True),
        (0.110, PREDICTED, False),
        (0.105, Range(value=0.100, low=0.099, high=0.101), False),  # outside, but by 5 %
        (0.120, Range(value=0.100, low=0.050, high=0.200), False),
    ],
)
def test_a_contradiction_is_outside_of_the_interval_and_large(
    measured_s: float, predicted_s: Range, expected: bool
) -> None:
    assert is_contradicted(measured_s, predicted_s) == expected


def test_other_load_is_named_where_there_was_any() -> None:
    quiet, busy = (
        contradiction_line(
            Contradiction(ranks=2, measured_s=0.441, predicted_s=PREDICTED, had_other_load=had_other_load)
        )
        for had_other_load in (False, True)
    )
    assert quiet == (
        "Measured 441 ms on 2 ranks, predicted 97.0 ms [86.0 to 111]: this run contradicts the prediction. "
        "Nothing is predicted beyond 2 ranks."
    )
    assert busy == f"{quiet} Other processes used the machine meanwhile: measure again when it is idle."
