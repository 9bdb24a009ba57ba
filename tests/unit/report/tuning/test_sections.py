"""The output of `tune`: its sentence, its tables, its JSON."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.statistics import Estimate
from scalescope.analysis.tuning.losses import LeverComparison, compare_all
from scalescope.analysis.tuning.search import Attempt
from scalescope.report.tuning.as_json import tuning_json
from scalescope.report.tuning.sections import NOW, Tuning, next_after_tuning, tuning_sections, verdict
from scalescope.results.run_record import RunRecord
from tests.unit.analysis.made_results import make_configuration, make_trial

BASELINE = make_trial(seed=0)
CALM = (0.0100, 0.0101, 0.0099, 0.0100, 0.0100)
TEXTS = ("fast 1", "same 2", "noisy 3", "slow 4", "broken 5", "unmade 6")
TRIALS = {text: make_trial(seed=int(text[-1])) for text in TEXTS}
RUN = Path("/run")


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in CALM)


def comparisons() -> tuple[LeverComparison, ...]:
    made = {"fast 1": times(0.5), "same 2": CALM, "noisy 3": (0.008, 0.012, 0.01, 0.009, 0.013)}
    configurations = [make_configuration(TRIALS[text], *steps) for text, steps in made.items()]
    slow = make_configuration(TRIALS["slow 4"], 0.02, 0.02)
    return compare_all(make_configuration(BASELINE, *CALM), [*configurations, slow], 0.03)


SINGLES = comparisons()
FAST, SAME, NOISY, SLOW = SINGLES


def tuning(**changes: Any) -> Tuning:
    whole = Tuning(
        levers=tuple((text, trial.trial_id, "nothing") for text, trial in TRIALS.items()),
        inapplicable=(("pin_memory", "needs a CUDA GPU"),),
        baseline=BASELINE,
        singles=SINGLES,
        dropped=frozenset((SLOW.candidate.trial.trial_id,)),
        failed={TRIALS["broken 5"].trial_id: "oom: too large"},
        scaling={},
        first="fast 1",
        attempts=(),
        winner=frozenset(("fast 1",)),
        final=FAST,
        threshold=0.03,
        finished=True,
    )
    return dataclasses.replace(whole, **changes)


NOTHING: dict[str, Any] = {"winner": frozenset(), "final": None}
EARLY = " The search ended early; continue with --resume."
ODD = dataclasses.replace(FAST, loss_differs=True, loss_change=4.0)
ONCE = dataclasses.replace(
    NOISY, candidate=dataclasses.replace(NOISY.candidate, launches=NOISY.candidate.launches[:1])
)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "fast 1 is faster: 2.00× [1.98, 2.02] the current speed."),
        ({"winner": frozenset(("b", "a"))}, "a + b is faster: 2.00× [1.98, 2.02] the current speed."),
        (
            {"final": SAME},
            "fast 1 was fastest in the search, but new launches did not confirm it (1.00× [0.99, 1.01]).",
        ),
        ({"final": None}, "fast 1 was fastest in the search, but new launches of it failed."),
        (
            {"final": ODD},
            "fast 1 is faster (2.00× [1.98, 2.02]), but its loss differs (+400 %): not recommended.",
        ),
        (
            {**NOTHING, "singles": (ONCE, NOISY)},
            "No lever was found to be faster. 1 lever is inconclusive: too noisy. "
            "1 lever had one launch and no verdict; a larger --budget allows more.",
        ),
        (
            {"final": None, "finished": False},
            f"fast 1 was fastest in the search, but this is not confirmed yet.{EARLY}",
        ),
        (NOTHING, "No lever was found to be faster. 1 lever is inconclusive: too noisy."),
        (
            {**NOTHING, "singles": (NOISY, NOISY)},
            "No lever was found to be faster. 2 levers are inconclusive: too noisy.",
        ),
        ({**NOTHING, "singles": (SAME,)}, "No lever was found to be faster."),
        ({**NOTHING, "singles": ()}, "Nothing could be compared."),
        ({**NOTHING, "singles": (), "finished": False}, f"Nothing could be compared yet.{EARLY}"),
        (
            {**NOTHING, "singles": (), "failed": {BASELINE.trial_id: "failed: lost"}},
            "The baseline could not be measured: failed: lost",
        ),
    ],
)
def test_the_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert verdict(tuning(**changes)) == sentence
    assert tuning_sections(tuning(**changes))[0].lines == (sentence,)


LONGER = "scalescope tune /run/experiment.yaml --repeats 10 --levers all"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "scalescope train /run/tuned.yaml"),
        ({"final": SAME}, LONGER),
        ({"final": None, "finished": False}, LONGER),
        ({**NOTHING, "singles": (SAME, SLOW)}, None),
    ],
)
def test_only_what_was_confirmed_is_run_next(changes: dict[str, Any], line: str | None) -> None:
    record = RunRecord(verb="tune", flags=("--levers", "all"))
    following = next_after_tuning(tuning(**changes), RUN, record)
    assert (None if following is None else following.command) == line


def test_the_table_has_a_row_for_everything_the_best_first() -> None:
    table = tuning_sections(tuning())[1].table
    assert table is not None
    assert table.columns == (
        "lever",
        "verdict",
        "speedup",
        "detectable change",
        "memory",
        "GPU busy",
        "loss change",
        "remark",
    )
    assert [row[:2] for row in table.rows] == [
        ("fast 1", "faster"),
        ("same 2", "no difference"),
        ("noisy 3", "inconclusive"),
        ("slow 4", "slower"),
        ("broken 5", "failed"),
        ("unmade 6", "—"),
    ]
    by_lever = {row[0]: row for row in table.rows}
    assert by_lever["fast 1"][2] == "2.00× [1.98, 2.02]"
    assert by_lever["slow 4"][-1] == "dropped after 2 launches"
    assert by_lever["broken 5"][2:] == ("—", "—", "—", "—", "—", "oom: too large")
    assert by_lever["unmade 6"][2:] == ("—", "—", "—", "—", "—", "not measured")
    assert by_lever["same 2"][3].endswith("%")


def test_remarks_name_what_a_speedup_costs() -> None:
    other = dataclasses.replace(FAST, loss_change=0.05, loss_differs=True)
    levers = (("fast 1", TRIALS["fast 1"].trial_id, "the job"),)
    table = tuning_sections(tuning(levers=levers, singles=(other,)))[1].table
    assert table is not None
    assert table.rows[0][-2:] == ("+5.0 %", "changes the job: compared per sample")
    table = tuning_sections(tuning(singles=(other,)))[1].table
    assert table is not None
    assert table.rows[0][-2:] == ("+5.0 %", "the loss differs")


def test_how_other_jobs_scale_has_a_column_and_a_sentence() -> None:
    scaling = {NOW: Estimate(value=0.44, low=0.4, high=0.5), "fast 1": Estimate(value=3.1, low=3.0, high=3.2)}
    baseline = BASELINE.replace(world_size=4)
    first, tried, *_ = tuning_sections(tuning(scaling=scaling, baseline=baseline))
    assert first.lines[1:] == (
        "4 ranks now deliver 0.44× [0.40, 0.50] the speed of one rank (slower than one rank).",
        "Of the changed jobs, fast 1 scales best: 3.10× [3.00, 3.20] the speed of one rank. "
        "It changes the work itself; it does not make this job faster.",
    )
    assert tried.table is not None
    column = tried.table.columns.index("speedup over 1 rank")
    assert [row[column] for row in tried.table.rows[:2]] == ["3.10× [3.00, 3.20]", "—"]


def test_combinations_and_what_does_not_apply_have_sections_of_their_own() -> None:
    attempts = (
        Attempt(text="b", adds=True, speedup=1.25, kept=True, launches=2),
        Attempt(text="d", adds=True, speedup=None, kept=False),
        Attempt(text="a", adds=False, speedup=1.25, kept=True, launches=1),
        Attempt(text="c", adds=False, speedup=0.8, kept=False, launches=3),
    )
    together, left_out = tuning_sections(tuning(attempts=attempts))[2:]
    assert together.table is not None
    assert together.table.rows == (
        ("with fast 1", "2.00×", "5", "fastest single lever"),
        ("with b", "1.25×", "2", "kept"),
        ("with d", "—", "0", "out of time: left out"),
        ("without a", "0.80×", "1", "kept"),  # how much slower it is without
        ("without c", "1.25×", "3", "left out"),
    )
    assert left_out.lines == ("pin_memory: needs a CUDA GPU",)
    assert len(tuning_sections(tuning(inapplicable=()))) == 2


def test_one_launch_is_no_verdict() -> None:
    once = make_configuration(TRIALS["fast 1"], 0.005)
    (comparison,) = compare_all(make_configuration(BASELINE, *CALM), [once], 0.03)
    table = tuning_sections(tuning(singles=(comparison,)))[1].table
    assert table is not None
    row = next(row for row in table.rows if row[0] == "fast 1")
    assert row[1:3] == ("—", "2.00×")
    assert row[-1] == "one launch: no verdict"


def test_a_lever_tried_only_in_combinations_is_marked() -> None:
    attempts = (Attempt(text="unmade 6", adds=True, speedup=1.3, kept=True, launches=1),)
    table = tuning_sections(tuning(attempts=attempts))[1].table
    assert table is not None
    assert table.rows[-1][-1] == "slow to start: only tried in combinations"


def test_the_json_holds_the_same_facts() -> None:
    document = json.loads(json.dumps(tuning_json(tuning()), allow_nan=False))
    by_lever = {entry["lever"]: entry for entry in document["tried"]}
    assert set(by_lever) == set(TEXTS)
    fast = by_lever["fast 1"]
    assert fast["verdict"] == "faster"
    assert fast["speedup"] == pytest.approx(2.0)
    assert fast["ci95_speedup"][0] < 2.0 < fast["ci95_speedup"][1]
    assert fast["launches"] == 5
    assert fast["loss_differs"] is False
    assert by_lever["slow 4"]["dropped"] is True
    assert by_lever["broken 5"]["failed"] == "oom: too large"
    assert by_lever["broken 5"]["verdict"] is by_lever["unmade 6"]["verdict"] is None
    assert document["winner"] == ["fast 1"]
    assert document["recommended"] is True
    assert document["confirmed"]["verdict"] == "faster"
    assert document["inapplicable"] == [{"lever": "pin_memory", "reason": "needs a CUDA GPU"}]
    assert tuning_json(tuning(**NOTHING))["confirmed"] is None
    assert tuning_json(tuning(final=SAME))["recommended"] is False
