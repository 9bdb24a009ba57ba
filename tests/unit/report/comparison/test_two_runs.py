"""The output of `compare`: the sentence, the table, the differences, and what would decide."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from scalescope.analysis.comparison.environments import Difference
from scalescope.analysis.comparison.runs import Failed, RunComparison, compare_runs
from scalescope.analysis.run_spread import DEFAULT_SPREAD, RunSpread
from scalescope.analysis.verdicts import NO_SPREAD
from scalescope.experiment.trial import Trial
from scalescope.report.comparison.two_runs import Compared, comparison_json, comparison_sections, verdict
from scalescope.report.comparison.undecided import spread_line
from scalescope.report.comparison.variants import differs_text
from scalescope.report.section import Section
from scalescope.results.result import Result
from tests.builders.commands import command_launches, make_command
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
        run_of(CALM, CALM, CALM, trials=TRIALS[:3]), run_of(CALM, CALM, trials=[TRIALS[0], TRIALS[3]]), 0.03
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


def test_windows_of_different_lengths_are_reported() -> None:
    runs = [
        [make_result(TRIALS[0], [[0.01] * steps], launch=number) for number in range(3)] for steps in (10, 40)
    ]
    first, *_ = comparison_sections(compared_runs(compare_runs(*runs, threshold=0.03)))
    assert "Launches measured for 0.1 s before and 0.4 s after (1 of 1 configuration)." in first.lines


MIDDLING = (0.0100, 0.0103, 0.0097, 0.0101, 0.0099)
HOPELESS = (0.010, 0.030, 0.004, 0.020, 0.009)
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
    assert section.lines[0].startswith("Only alternating launches")
    assert [command.argv for command in section.commands] == [
        ("scalescope", "compare", "old", "new", "--interleave")
    ]
    assert "run-to-run variation is too large" in verdict(shown.comparison)


def test_what_cannot_be_measured_in_turns_is_not_suggested() -> None:
    section = deciding(compared(CALM, WIDE))
    assert section.commands == ()
    assert "separate workload" in section.lines[0]


def test_hopeless_noise_says_so() -> None:
    assert deciding(compared(HOPELESS)).lines[0].startswith("No practical number of launches")


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


def lines_of(before: Trial, after: Trial, factor: float = 1.0) -> tuple[str, ...]:
    """The first lines about two variants, the second with steps so many times as long."""
    runs = run_of(CALM, trials=[before]), run_of(times(factor), trials=[after])
    return comparison_sections(compared_runs(compare_runs(*runs, threshold=0.03)))[0].lines


def test_what_differs_is_said_first_and_other_work_is_no_regression() -> None:
    differs, work = lines_of(TRIAL, TRIAL.replace(hidden_dim=2048, batch_size=20), 1.25)
    assert differs == "batch_size 10 → 20; hidden_dim 1024 → 2048."
    assert work == (
        "Different work: 1.60× the samples/s are speeds of different jobs, neither a regression nor an "
        "improvement."
    )


def test_a_lever_is_held_to_the_threshold() -> None:
    differs, sentence = lines_of(TRIAL, TRIAL.replace(fused_optimizer=True), 1.25)
    assert differs == "fused_optimizer False → True."
    assert sentence == "1 of 1 configuration is slower by more than 3 %, by up to 20 %."


def test_more_ranks_are_a_speedup_and_threads_that_differ_are_said(render: Render) -> None:
    before, after = TRIAL.replace(threads_per_rank=2), TRIAL.replace(world_size=2, strategy="ddp")
    differs, speedup = lines_of(before, after, 1.25)
    assert differs == "ranks 1 → 2; threads per rank 2 → 1."
    assert speedup == (
        "2 ranks deliver 1.60× the samples/s of 1 rank, 0.80× per rank. 1 rank had 2 threads, 2 ranks 1 each."
    )
    runs = run_of(CALM, trials=[before]), run_of(times(1.25), trials=[after])
    text = render(comparison_sections(compared_runs(compare_runs(*runs, threshold=0.03))))
    (row,) = [line for line in text.splitlines() if "1 rank → 2 ranks" in line]
    assert "single → ddp" in row and "-20.0 %" in row and "other ranks" in row


def test_threads_that_a_command_sets_by_itself_are_said() -> None:
    trial = make_command(command="python a.py")
    runs = (command_launches(trial, CALM, threads=threads) for threads in (2, 1))
    first, table, *_ = comparison_sections(compared_runs(compare_runs(*runs, threshold=0.03)))
    assert first.lines[0] == "CPU threads per rank 2 → 1."
    assert table.title is not None and "thread" not in table.title


def test_threads_stand_in_the_heading_where_all_have_the_same() -> None:
    (table,) = [part for part in comparison_sections(compared(CALM)) if part.table is not None]
    assert table.title is not None and table.title.endswith("1 thread per rank")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("python a.py --hidden 512", "python a.py --hidden 1024", "`--hidden 512` → `--hidden 1024`"),
        ("python a.py --hidden=5 -q", "python a.py --hidden=6", "`--hidden=5` → `--hidden=6`; without `-q`"),
        ("python a.py", "python b.py --wide", "`a.py` → `b.py`; with `--wide`"),
        ("python a.py -x -y", "python a.py -y -x", "the order of the command's words"),
    ],
)
def test_commands_differ_in_words(before: str, after: str, words: str) -> None:
    old, new = (command_launches(make_command(command=command), CALM) for command in (before, after))
    (config,) = compare_runs(old, new, 0.03).judged
    assert config.work == "different"
    assert differs_text(config) == words


def test_what_counts_different_things_is_compared_by_steps() -> None:
    samples = command_launches(make_command(command="python a.py"), CALM)
    tokens = command_launches(make_command(command="python b.py", observed_unit="tokens"), times(2.0))
    comparison = compare_runs(samples, tokens, 0.03)
    assert comparison.judged[0].rates == pytest.approx((100.0, 50.0), rel=0.01)
    first, table, *_ = comparison_sections(compared_runs(comparison))
    assert "0.50× the steps/s" in first.lines[1]
    assert table.title is not None and table.title.startswith("steps/s before")
