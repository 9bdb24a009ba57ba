"""The output of `compare`: the sentence, the table, the differences, and Markdown with everything escaped."""

import json
from collections.abc import Sequence

import pytest

from scalescope.analysis.comparison.environments import Difference
from scalescope.analysis.comparison.runs import Failed, RunComparison, compare_runs
from scalescope.experiment.trial import Trial
from scalescope.report.comparison.two_runs import Compared, comparison_json, comparison_sections, verdict
from scalescope.report.render.markdown import escaped, markdown
from scalescope.report.section import Section, Table
from scalescope.results.result import Result
from tests.builders.results import make_result, make_trial

from ..conftest import Render

CALM = (0.0100, 0.0101, 0.0099, 0.0100, 0.0100)
NOISY = (0.0100, 0.0125, 0.0085, 0.0110, 0.0095)
TRIALS = [make_trial(batch_size=batch) for batch in (10, 20, 30, 40)]


def run_of(*steps_s: Sequence[float], trials: Sequence[Trial] = TRIALS) -> list[Result]:
    """The launches of as many trials as there are step times."""
    return [
        make_result(trial, [[step] * 10] * trial.world_size, launch=number)
        for trial, steps in zip(trials, steps_s, strict=False)
        for number, step in enumerate(steps)
    ]


def times(factor: float, steps_s: Sequence[float] = CALM) -> list[float]:
    return [factor * step for step in steps_s]


def compared_with(*after: Sequence[float], before: Sequence[Sequence[float]] | None = None) -> RunComparison:
    return compare_runs(run_of(*(before or [CALM] * len(after))), run_of(*after), 0.03)


def compared_runs(
    comparison: RunComparison, *differences: Difference, notes: tuple[str, ...] = ()
) -> Compared:
    return Compared(base="old", new="new", comparison=comparison, differences=differences, notes=notes)


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        ([CALM], "No configuration is slower by more than 3 %."),
        (
            [times(1.08), times(1.10), CALM, CALM],
            "2 of 4 configurations are slower by more than 3 %, by up to 9.1 %.",
        ),
        ([times(1.25), CALM], "1 of 2 configurations is slower by more than 3 %, by up to 20 %."),
        (
            [CALM, CALM, CALM, NOISY],
            "No configuration is slower by more than 3 %; 1 of 4 is inconclusive (too noisy).",
        ),
        ([NOISY], "No configuration can be compared to within 3 %; 1 of 1 is inconclusive (too noisy)."),
        (
            [CALM, CALM[:1]],
            "No configuration is slower by more than 3 %; 1 of 2 is inconclusive "
            "(fewer than two launches per run).",
        ),
        ([times(0.8), CALM], "No configuration is slower by more than 3 %. 1 of 2 is faster, by up to 25 %."),
    ],
)
def test_the_sentence(after: list[Sequence[float]], sentence: str) -> None:
    assert verdict(compared_with(*after)) == sentence


def test_what_failed_is_part_of_the_sentence(render: Render) -> None:
    comparison = compared_with(CALM)
    broken = RunComparison(
        threshold=0.03,
        judged=comparison.judged,
        failed=(Failed(trial=TRIALS[1], reason="rank 1 died"),),
        only_before=(),
        only_after=(),
        collectives=(),
    )
    assert (
        verdict(broken)
        == "No configuration is slower by more than 3 %. 1 configuration failed that worked before."
    )
    assert "batch 20: rank 1 died" in render(comparison_sections(compared_runs(broken)))


def test_the_table_has_before_after_change_and_verdict(render: Render) -> None:
    text = render(comparison_sections(compared_runs(compared_with(times(1.08), CALM))))
    (row,) = [line for line in text.splitlines() if "batch 10" in line]
    assert "1,000" in row and "925.9" in row and "slower (regression)" in row
    # ln differs by 0.0770 ± t.975(8)·√(2/5)·0.00707 = 0.0103
    assert "-7.4 % [-8.4, -6.4]" in row
    assert "No recorded difference" in text


def test_a_machine_that_changed_speed_is_reported() -> None:
    trial = TRIALS[0]
    runs = [
        [make_result(trial, [[s] * 10], launch=n, calibration=[(rate, rate)]) for n, s in enumerate(CALM)]
        for rate in (5e10, 4e10)
    ]
    first, *_ = comparison_sections(compared_runs(compare_runs(*runs, threshold=0.03)))
    assert "matrix multiplication ran 20 % slower" in first.lines[1]


def test_differences_and_unmatched_configurations_are_listed(render: Render) -> None:
    comparison = compare_runs(
        run_of(CALM, CALM, trials=TRIALS[:2]), run_of(CALM, CALM, trials=[TRIALS[0], TRIALS[3]]), 0.03
    )
    torch = Difference(kind="version", name="torch_version", before="2.6", after="2.7")
    text = render(comparison_sections(compared_runs(comparison, torch)))
    assert "version torch_version: 2.6 → 2.7" in text
    assert "only before: single, 1 rank, batch 20 (batch_size 20 instead of 40)" in text
    assert "only after: single, 1 rank, batch 40 (batch_size 40 instead of 20)" in text


def test_the_data_are_plain() -> None:
    data = comparison_json(compared_runs(compared_with(times(1.08), NOISY)))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["schema_version"], data["base"], data["new"], data["threshold"]) == (
        "1.0",
        "old",
        "new",
        0.03,
    )
    assert data["gate_missed"] is True
    first, second = data["trials"]
    assert (first["verdict"], first["regression"]) == ("slower", True)
    assert first["change"] == pytest.approx(1 / 1.08 - 1)
    low, high = first["ci95_change"]
    assert low < first["change"] < high
    assert second["verdict"] == "inconclusive"


HOSTILE = "a|b <script>alert(1)</script>\n# head [x](http://y) `z` *w* _v_ ~~u~~ @team \x1b[31m\\"


def test_nothing_hostile_comes_through_as_markup() -> None:
    text = escaped(HOSTILE)
    assert text.isprintable()
    assert "<" not in text and "@" not in text
    for mark in "|`*_[]~#":
        assert text.count(mark) == text.count(f"\\{mark}") + (text.count("&#64;") if mark == "#" else 0)


def test_a_table_keeps_its_cells_whatever_they_hold() -> None:
    table = Table(columns=("name", "value"), rows=((HOSTILE, "1"),), left=frozenset(("name",)))
    lines = markdown((Section(title=HOSTILE, table=table, lines=(HOSTILE, "second")),)).splitlines()
    assert [line[:4] for line in lines if line] == ["### ", "| na", "| :-", "| a\\", "- a\\", "- se"]
    row = next(line for line in lines if line.startswith("| a"))
    assert len([n for n, character in enumerate(row) if character == "|" and row[n - 1 : n] != "\\"]) == 3


def test_hostile_settings_are_escaped_in_the_whole_document() -> None:
    trials = [TRIALS[0].replace(env={"A": HOSTILE}), TRIALS[0].replace(env={"A": "1"})]
    both = run_of(CALM, CALM, trials=trials)
    comparison = compare_runs(both, both, 0.03)
    hostile = Difference(kind="variable", name="NCCL_X", before=HOSTILE, after="not set")
    text = markdown(comparison_sections(compared_runs(comparison, hostile, notes=(HOSTILE,))))
    assert "<script>" not in text and "@team" not in text and "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("| single")]
    assert len(rows) == 2


def test_windows_of_different_lengths_are_reported() -> None:
    runs = [
        [make_result(TRIALS[0], [[0.01] * steps], launch=number) for number in range(3)] for steps in (10, 40)
    ]
    first, *_ = comparison_sections(compared_runs(compare_runs(*runs, threshold=0.03)))
    assert "Launches measured for 0.1 s before and 0.4 s after (1 of 1 configuration)." in first.lines
