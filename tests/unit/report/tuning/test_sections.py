"""The output of `tune`: its sentence, its tables, its JSON."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.statistics import Estimate
from scalescope.report.section import Section
from scalescope.report.tuning.as_json import tuning_json
from scalescope.report.tuning.sections import (
    NOW,
    OtherJob,
    ScriptArgument,
    TriedCombination,
    TriedLever,
    Tuning,
    next_after_tuning,
    tuning_sections,
    verdict,
)
from tests.builders.commands import make_command
from tests.builders.results import make_configuration, make_trial

BASELINE = make_trial(seed=0)
RUN = Path("/run")


def speed(value: float) -> Estimate:
    return Estimate(value, value - 0.1, value + 0.1)


def combination(*levers: str, speedup: float = 1.0, launches: int = 2, **options: Any) -> TriedCombination:
    trial = make_trial(seed=1 + len(levers) + sum(map(ord, "".join(levers))))
    return TriedCombination(
        levers=levers,
        configuration=make_configuration(trial if levers else BASELINE, *[0.01 / speedup] * launches),
        speedup=speed(speedup) if levers else Estimate(1.0),
        **{"verdict": None, **options},
    )


CURRENT = combination()
FAST = combination("a 1", "b 2", speedup=2.0, verdict="faster", is_confirmed=True)
SINGLE = combination("a 1", speedup=1.5, launches=1)


def lever(name: str, status: Any, **options: Any) -> TriedLever:
    return TriedLever(name=name, trial_id="0" * 12, changes="rounding", status=status, **options)


LEVERS = (
    lever("a 1", "recommended", speedup=speed(1.5), launches=1, support="when added"),
    lever("b 2", "recommended", added_to=("a 1",), speedup=speed(1.3), launches=2, support="confirmed"),
    lever("c 3", "slower", added_to=("a 1", "b 2"), speedup=speed(0.8), launches=1),
    lever("d 4", "failed", added_to=("a 1", "b 2"), reason="oom: too large"),
    lever("e 5", "not measured"),
    lever("f 6", "unpromising"),
)


def tuning(**changes: Any) -> Tuning:
    whole = Tuning(
        baseline=BASELINE,
        combinations=(FAST, SINGLE, CURRENT),
        levers=LEVERS,
        inapplicable=(("pin_memory", "requires a CUDA GPU"),),
        winner=("a 1", "b 2"),
        recommended=True,
        is_confirmed=True,
        gain=speed(2.0),
    )
    return dataclasses.replace(whole, **changes)


NOTHING: dict[str, Any] = {"winner": (), "recommended": False, "is_confirmed": False, "gain": None}
NONE_FASTER: dict[str, Any] = {**NOTHING, "combinations": (combination("a 1", speedup=0.98), CURRENT)}
ODD = combination("a 1", speedup=1.5, loss_differs=True, loss_change=4.0)
FAILING = combination("a 1", speedup=1.5, failure="failed: lost")
NOT_OVER = "The search is not complete; --resume, with a larger --budget, continues it."


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {},
            [
                "a 1 + b 2 is faster: 2.00× [1.90, 2.10] the current speed.",
                "Measured when added, not separately confirmed at the end: a 1.",
            ],
        ),
        (
            {"is_confirmed": False, "levers": ()},
            [
                "a 1 + b 2 is faster: 2.00× [1.90, 2.10] the current speed.",
                "There was no time for new launches to confirm it; use a larger --budget.",
            ],
        ),
        (
            {**NONE_FASTER, "at_most": 0.0311},
            ["Nothing that was tried beats the current settings by more than 3.2 %."],
        ),
        (  # below one percent nothing is claimed
            {**NONE_FASTER, "at_most": 0.002},
            ["Nothing that was tried beats the current settings by more than 1 %."],
        ),
        (
            {**NONE_FASTER, "at_most": 0.6},
            [
                "No setting is significantly faster than the current ones; launches vary too much to "
                "exclude gains of up to 60 %."
            ],
        ),
        (
            {"recommended": False, "at_most": 0.2, "gain": speed(1.12), "winner": ("a 1",)},
            [
                "Nothing that was tried beats the current settings by more than 20 %.",
                "a 1 was fastest (1.12× [1.02, 1.22]), but the difference is not significant.",
            ],
        ),
        (
            {**NOTHING, "combinations": (ODD, CURRENT)},
            [
                "Nothing that was tried can be recommended.",
                "a 1 was faster (1.50× [1.40, 1.60]), but its loss differs (+400.0 %): not recommended.",
            ],
        ),
        (
            {**NOTHING, "combinations": (FAILING, combination("b 2"), CURRENT), "at_most": 0.05},
            [
                "Nothing that can be recommended beats the current settings by more than 5 %.",
                "a 1 was faster (1.50× [1.40, 1.60]), but a launch of it failed (failed: lost): "
                "not recommended.",
            ],
        ),
        (
            {**NOTHING, "combinations": (CURRENT,), "finished": False, "levers": (LEVERS[4],)},
            [
                "Only the current settings could be measured; use a larger --budget to try levers.",
                NOT_OVER,
            ],
        ),
        (  # launches failed: more time would not help
            {
                **NOTHING,
                "combinations": (CURRENT,),
                "finished": False,
                "budget_ended": False,
                "levers": (LEVERS[4],),
            },
            [
                "Only the current settings could be measured.",
                "The search is not complete; --resume continues it.",
            ],
        ),
        (
            {**NOTHING, "combinations": (CURRENT,), "levers": (LEVERS[3],)},
            ["Only the current settings could be measured; every lever that was tried failed."],
        ),
        (
            {**NOTHING, "combinations": (CURRENT,), "levers": (LEVERS[5],)},
            ["No lever was tried: the parts they change take too little of this job's step."],
        ),
        (
            {**NOTHING, "combinations": (), "baseline_failure": "failed: lost", "finished": False},
            ["The current settings could not be measured: failed: lost"],
        ),
        ({**NOTHING, "combinations": (), "finished": False}, ["Nothing was measured yet.", NOT_OVER]),
    ],
)
def test_the_sentence_and_its_remarks(changes: dict[str, Any], lines: list[str]) -> None:
    assert verdict(tuning(**changes)) == lines[0]
    assert list(tuning_sections(tuning(**changes))[0].lines) == lines


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (4 << 30, 1 << 30, ["Memory at its peak: 1.00 GiB in place of 4.00 GiB."]),
        ((4 << 30) + 1, 4 << 30, ["Memory at its peak: 4.00 GiB, as before."]),
        (None, 1 << 30, []),
    ],
)
def test_the_memory_that_the_settings_cost_or_free(
    before: int | None, after: int | None, line: list[str]
) -> None:
    def using(tried: TriedCombination, peak: int | None) -> TriedCombination:
        launches = [dataclasses.replace(one, peak_memory_bytes=peak) for one in tried.configuration.launches]
        return dataclasses.replace(
            tried, configuration=dataclasses.replace(tried.configuration, launches=tuple(launches))
        )

    combinations = (using(FAST, after), using(CURRENT, before))
    lines = tuning_sections(tuning(combinations=combinations, levers=()))[0].lines
    assert [text for text in lines if "Memory" in text] == line


def test_what_is_slower_and_cannot_be_used_is_not_worth_a_line() -> None:
    slow = combination("c 3", speedup=0.7, loss_differs=True)
    lines = tuning_sections(tuning(combinations=(FAST, CURRENT, slow), levers=()))[0].lines
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "scalescope train /run/tuned.yaml"),
        ({**NONE_FASTER, "at_most": 0.1}, None),
        ({**NONE_FASTER, "finished": False}, "scalescope resume /run --budget 10m"),
        ({**NONE_FASTER, "finished": False, "budget_ended": False}, "scalescope resume /run"),
        ({**NONE_FASTER, "finished": False, "one_launch_each": True}, None),
        ({**NOTHING, "combinations": (), "baseline_failure": "failed: lost", "finished": False}, None),
    ],
)
def test_the_next_step_runs_what_was_found_or_goes_on(changes: dict[str, Any], line: str | None) -> None:
    following = next_after_tuning(tuning(**changes), RUN)
    assert (None if following is None else following.command) == line


def rows_of(section: Section) -> list[dict[str, str]]:
    assert section.table is not None
    return [dict(zip(section.table.columns, row, strict=True)) for row in section.table.rows]


def test_every_combination_is_a_row() -> None:
    rows = rows_of(tuning_sections(tuning())[1])
    assert [row["settings"] for row in rows] == ["a 1 + b 2", "a 1", "current settings"]
    fast, single, current = rows
    assert (fast["speedup"], fast["verdict"], fast["remark"]) == (
        "2.00× [1.90, 2.10]",
        "faster",
        "recommended",
    )
    assert (fast["step time"], fast["launches"]) == ("5.00 ms", "2")
    assert (single["verdict"], single["remark"]) == ("—", "one launch: no verdict")
    assert (current["speedup"], current["remark"]) == ("1.00×", "")


def test_an_interval_that_excludes_no_change_beside_no_verdict_is_explained() -> None:
    unsure = combination("a 1", speedup=1.5, verdict="inconclusive")
    unclear = combination("b 2", speedup=1.05, verdict="inconclusive")
    rows = rows_of(tuning_sections(tuning(**{**NOTHING, "combinations": (unsure, unclear, CURRENT)}))[1])
    assert [row["remark"] for row in rows] == ["not sure enough, as one of 2 sets", "", ""]


def test_what_was_only_tried_has_no_launch() -> None:
    tried = combination("a 1", speedup=1.5, launches=1, tried_step_s=0.004)
    (row, _) = rows_of(tuning_sections(tuning(**{**NOTHING, "combinations": (tried, CURRENT)}))[1])
    assert (row["step time"], row["launches"]) == ("4.00 ms", "0")
    assert row["remark"] == "tried in another one's start: no verdict"
    faster = combination("c 3", speedup=3.0, launches=1, tried_step_s=0.003)
    rows = rows_of(tuning_sections(tuning(combinations=(faster, FAST, CURRENT)))[1])
    assert [row["remark"] for row in rows][:2] == [
        "tried in another one's start: no verdict",
        "recommended",
    ]


def test_remarks_name_what_forbids_a_combination() -> None:
    rows = rows_of(tuning_sections(tuning(**{**NOTHING, "combinations": (ODD, FAILING, CURRENT)}))[1])
    assert [row["remark"] for row in rows] == ["the loss differs", "a launch failed: failed: lost", ""]
    assert rows[0]["loss change"] == "+400.0 %"


def test_the_launch_without_communication_is_a_row_too() -> None:
    silent = make_configuration(make_trial(seed=99), 0.008)
    *_, last = rows_of(tuning_sections(tuning(without_communication=silent))[1])
    assert (last["settings"], last["step time"]) == ("current settings, without communication", "8.00 ms")
    assert (last["speedup"], last["launches"]) == ("—", "1")


def test_levers_have_what_they_were_added_to_and_what_they_gave() -> None:
    rows = rows_of(tuning_sections(tuning())[2])
    assert [(row["lever"], row["added to"], row["result"]) for row in rows] == [
        ("a 1", "current settings", "recommended: measured when added"),
        ("b 2", "a 1", "recommended"),
        ("c 3", "a 1 + b 2", "slower"),
        ("d 4", "a 1 + b 2", "oom: too large"),
    ]
    assert [row["speedup"] for row in rows][2:] == ["0.80× [0.70, 0.90]", "—"]


@pytest.mark.parametrize(
    ("status", "reason", "result"),
    [
        ("kept", None, "not proven"),
        ("dropped", None, "dropped: no gain in the end"),
        ("no gain", None, "no gain"),
        ("undecided", None, "undecided"),
        ("undecided", "ended after 40 s", "undecided: ended after 40 s"),
        ("loss differs", None, "left out: the loss differs"),
    ],
)
def test_every_result_has_words(status: str, reason: str | None, result: str) -> None:
    (row,) = rows_of(tuning_sections(tuning(levers=(lever("a 1", status, reason=reason),)))[2])
    assert row["result"] == result


def test_what_was_not_launched_has_a_reason() -> None:
    def lines(**changes: Any) -> tuple[str, ...]:
        return tuning_sections(tuning(**changes))[-1].lines

    assert lines(finished=False) == (
        "e 5: no time was left",
        "f 6: the part it changes takes too little of this job's step",
        "pin_memory: requires a CUDA GPU",
    )
    assert lines()[0] == "e 5: cannot be added to the fastest settings"


def test_other_jobs_are_apart_with_how_they_scale() -> None:
    baseline = BASELINE.replace(world_size=4)
    now, best = Estimate(0.44, 0.4, 0.5), Estimate(3.1, 3.0, 3.2)
    jobs = (
        OtherJob(name="batch 9", configuration=CURRENT.configuration, speedup=speed(1.2), scaling=best),
        OtherJob(name=NOW, configuration=CURRENT.configuration, speedup=Estimate(1.0), scaling=now),
    )
    section = tuning_sections(tuning(other_jobs=jobs, baseline=baseline))[3]
    assert section.lines == (
        "4 ranks now deliver 0.44× [0.40, 0.50] the speed of one rank (slower than one rank).",
        "Of the changed jobs, batch 9 scales best: 3.10× [3.00, 3.20].",
    )
    assert [row["job"] for row in rows_of(section)] == ["batch 9", "now"]
    assert [row["speedup over 1 rank"] for row in rows_of(section)] == [
        "3.10× [3.00, 3.20]",
        "0.44× [0.40, 0.50]",
    ]
    alone = [dataclasses.replace(job, scaling=None) for job in jobs]
    section = tuning_sections(tuning(other_jobs=tuple(alone)))[3]
    assert section.lines == ()
    assert "speedup over 1 rank" not in rows_of(section)[0]


def test_only_other_jobs_say_so() -> None:
    job = OtherJob(name="batch 9", configuration=CURRENT.configuration, speedup=speed(1.2))
    only = tuning(**{**NOTHING, "combinations": (CURRENT,), "levers": (), "other_jobs": (job,)})
    assert verdict(only) == "No requested lever trains the same job; other jobs are listed separately."


def test_the_json_holds_the_same_facts() -> None:
    document = json.loads(json.dumps(tuning_json(tuning()), allow_nan=False))
    assert document["verdict"] == verdict(tuning())
    assert [row["levers"] for row in document["combinations"]] == [["a 1", "b 2"], ["a 1"], []]
    fast = document["combinations"][0]
    assert (fast["verdict"], fast["speedup"], fast["confirmed"]) == ("faster", 2.0, True)
    assert fast["ci95_speedup"] == [pytest.approx(1.9), pytest.approx(2.1)]
    assert (fast["launches"], fast["loss_differs"], fast["failure"]) == (2, False, None)
    by_lever = {entry["lever"]: entry for entry in document["levers"]}
    assert by_lever["d 4"]["reason"] == "oom: too large"
    assert by_lever["b 2"]["support"] == "confirmed"
    assert by_lever["e 5"]["speedup"] is by_lever["e 5"]["ci95_speedup"] is None
    assert (document["winner"], document["recommended"]) == (["a 1", "b 2"], True)
    assert document["confirmed"]["speedup"] == 2.0
    assert document["inapplicable"] == [{"lever": "pin_memory", "reason": "requires a CUDA GPU"}]
    assert document["without_communication"] is None
    assert tuning_json(tuning(**NOTHING))["confirmed"] is None
    assert tuning_json(tuning(is_confirmed=False))["confirmed"] is None


def test_single_launches_claim_nothing() -> None:
    once = tuning(**{**NOTHING, "one_launch_each": True, "combinations": (SINGLE, CURRENT)})
    assert verdict(once).startswith("a 1 was fastest (1.50×), but this is not a verdict")
    measured, failed, _ = tuning_sections(once)[1:]
    assert "intervals" not in (measured.title or "")
    assert [row["lever"] for row in rows_of(failed)] == ["d 4"]
    assert failed.title == "Levers that failed"


def test_a_row_above_the_recommended_one_says_why_it_is_not_recommended() -> None:
    faster = dataclasses.replace(tuning().combinations[0], levers=("a", "b", "c"), speedup=Estimate(99.0))
    shown = tuning(recommended=True, combinations=(faster, *tuning().combinations))
    rows = next(section for section in tuning_sections(shown) if (section.title or "").startswith("Measured"))
    assert rows.table is not None
    assert rows.table.rows[0][-1] == "not measurably faster than the recommended settings"


def of_script(**options: Any) -> Tuning:
    tried = combination("a 1", "b 2", speedup=2.0, verdict="faster", is_confirmed=True, **options)
    return tuning(baseline=make_command(), combinations=(tried, CURRENT), levers=LEVERS[:2])


def test_what_changes_numbers_is_said_of_a_script_with_its_loss() -> None:
    first, *_ = tuning_sections(of_script(loss_change=0.001))
    assert first.lines[1] == (
        "Changes the computed numbers: a 1, b 2; --keep-numerics does not try it. The loss differs by +0.1 %."
    )
    assert tuning_json(of_script(loss_change=0.001))["combinations"][0]["loss_unknown"] is None


def test_losses_that_cannot_be_compared_are_said_once() -> None:
    unknown = of_script(loss_unknown="not seeded")
    first, *_ = tuning_sections(unknown)
    assert "Losses could not be compared: the script is not seeded." in first.lines
    assert tuning_json(unknown)["combinations"][0]["loss_unknown"] == "not seeded"
    same = dataclasses.replace(
        unknown, levers=tuple(dataclasses.replace(lever, changes="nothing") for lever in unknown.levers)
    )
    assert not any("Losses" in line for line in tuning_sections(same)[0].lines)


def test_arguments_of_the_command_are_named() -> None:
    arguments = (
        ScriptArgument(setting="compile", text="--compile"),
        ScriptArgument(setting="precision", text="--bf16 True", is_known=True),
    )
    answer = dataclasses.replace(of_script(), arguments=arguments, winner_trial=make_command())
    (section,) = [section for section in tuning_sections(answer) if section.title == "In your own script"]
    assert [line.split(": ")[0] for line in section.lines] == ["compile", "precision"]
    assert ["probably" in line for line in section.lines] == [True, False]
    assert tuning_json(answer)["arguments"] == [
        {"setting": "compile", "argument": "--compile", "known": False},
        {"setting": "precision", "argument": "--bf16 True", "known": True},
    ]
