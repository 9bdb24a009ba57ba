"""What would decide an inconclusive comparison, as people read it."""

from pathlib import Path

from scalescope.analysis.comparison.runs import RunComparison, compare_runs
from scalescope.analysis.run_spread import DEFAULT_SPREAD, RunSpread
from scalescope.analysis.verdicts import NO_SPREAD
from scalescope.report.comparison.two_runs import Compared, comparison_json, comparison_sections, verdict
from scalescope.report.comparison.undecided import spread_line
from scalescope.report.section import Section
from tests.builders.results import make_result, make_trial

CALM = (0.0100, 0.0101, 0.0099, 0.0100, 0.0100)
MIDDLING = (0.0100, 0.0103, 0.0097, 0.0101, 0.0099)
NOISY = (0.010, 0.030, 0.004, 0.020, 0.009)
WIDE = RunSpread(deviation=0.03, freedom=20.0, runs=7)
TRIAL = make_trial(batch_size=10)


def compared(
    after: tuple[float, ...], spread: RunSpread = NO_SPREAD, *, can_interleave: bool = False
) -> Compared:
    """The same step times before and after, a little slower."""
    runs = [
        [make_result(TRIAL, [[factor * step] * 10], launch=n) for n, step in enumerate(after)]
        for factor in (1.0, 1.012)
    ]
    comparison: RunComparison = compare_runs(*runs, threshold=0.03, spread=spread)
    return Compared(
        base="old",
        new="new",
        comparison=comparison,
        differences=(),
        paths=(Path("old"), Path("new")),
        can_interleave=can_interleave,
    )


def deciding(shown: Compared) -> Section:
    (section,) = [
        part for part in comparison_sections(shown) if part.title and part.title.startswith("What would")
    ]
    return section


def test_launches_and_a_looser_threshold_are_named() -> None:
    shown = compared(MIDDLING)
    first, second = deciding(shown).lines
    remedy = comparison_json(shown)["trials"][0]["would_decide"]
    assert first.startswith(f"About {remedy['launches']} launches per run")
    assert second.startswith(f"--threshold {remedy['threshold'] * 100:g}%")
    assert "too noisy" in verdict(shown.comparison)


def test_only_turns_decide_what_the_spread_between_runs_hides() -> None:
    shown = compared(CALM, WIDE, can_interleave=True)
    section = deciding(shown)
    assert section.lines[0].startswith("Only launches made in turns")
    assert [command.argv for command in section.commands] == [
        ("scalescope", "compare", "old", "new", "--interleave")
    ]
    assert "runs differ too much of themselves" in verdict(shown.comparison)


def test_what_cannot_be_measured_in_turns_is_not_suggested() -> None:
    section = deciding(compared(CALM, WIDE))
    assert section.commands == ()
    assert "workload of its own" in section.lines[0]


def test_hopeless_noise_says_so() -> None:
    assert deciding(compared(NOISY)).lines[0].startswith("No sensible number of launches")


def test_the_spread_names_its_source() -> None:
    assert spread_line(NO_SPREAD) == ()
    assert "from 7 runs on this hardware" in spread_line(WIDE)[0]
    assert spread_line(WIDE)[0].startswith("Run-to-run spread 3 %")
    assert "default" in spread_line(DEFAULT_SPREAD)[0]
    learned_none = RunSpread(deviation=0.0, freedom=5.0, runs=6)
    assert "from 6 runs" in spread_line(learned_none)[0]


def test_what_is_decided_needs_nothing() -> None:
    titles = [part.title for part in comparison_sections(compared(CALM))]
    assert not any(title and title.startswith("What would") for title in titles)
    assert comparison_json(compared(CALM))["run_spread"] is None
