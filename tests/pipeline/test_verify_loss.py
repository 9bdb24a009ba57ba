"""`tune --verify-loss`: two longer launches after the search say whether the winner trains as before."""

import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapters.levers import chapter
from scalescope.report.render.svg import svg_for_page
from scalescope.results.result import Result
from scalescope.studies.stored import present
from scalescope.studies.study import Report
from tests.builders.studies import tune
from tests.builders.timed_launches import Clock, campaign_clock
from tests.simulated.launcher import FakeLauncher

from .recording import RecordingWatcher, ask
from .tuning import BF16, JIT, Outcomes, model_of, no_outcome, results_of, tuning_in

MODEL = model_of({(BF16,): 0.7, (JIT,): 0.8})
STEPS = 200


def _tuned(
    outcomes: Outcomes = no_outcome,
    verify_loss: int | None = STEPS,
    launcher: FakeLauncher | None = None,
    **asked: Any,
) -> Report:
    options = {"levers": ("precision", "jit"), "verify_loss": verify_loss}
    request = ask("tune", world_size=2, **{"budget": "1h", **asked})
    return tune(request, launcher or FakeLauncher(MODEL, outcomes=outcomes), RecordingWatcher(), **options)


def _loss_launches(path: str = "run") -> list[Result]:
    return [result for result in results_of(path) if result.stage is not None and result.stage.kind == "loss"]


def _is_long(trial: Trial) -> bool:
    return trial.steps is not None and trial.steps > STEPS


def _with_loss(factor: float) -> Outcomes:
    """Ranks whose loss becomes another one late, where the precision is bf16."""

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        made = FakeLauncher(MODEL).launch(trial, launch, None, None, RecordingWatcher())  # type: ignore[arg-type]
        for record in made.records:
            steps = len(record.samples["loss"])
            late = factor if trial.settings["precision"] == "bf16" and steps >= STEPS else 1.0
            record.samples["loss"] = [2.0 * (late if n > steps / 2 else 1.0) for n in range(steps)]
        return made

    return outcome


def test_after_the_search_both_settings_record_their_losses() -> None:
    report = _tuned()
    current, winner = _loss_launches()
    assert results_of()[-2:] == (current, winner)
    assert current.settings["precision"] == "fp32" and winner.settings["precision"] == "bf16"
    assert {len(rank.samples["loss"]) for r in (current, winner) for rank in r.ranks} == {STEPS}
    assert current.settings["steps_per_epoch"] == STEPS + current.settings["warmup_steps"]
    check = tuning_in()["loss_check"]
    assert (check["steps"], check["last_steps"], check["change"], check["differs"]) == (200, 50, 0.0, False)
    assert tuning_in()["recommended"] is True
    line = "The loss differs by +0.0 % over the last 50 of 200 steps, within the tolerance."
    assert line in report.sections[0].lines
    assert report.run is not None
    assert json.loads(present(report.run).files["tuning.json"]()) == tuning_in()


@pytest.mark.parametrize("steps", [{}, {"steps_per_epoch": STEPS + 3, "warmup_steps": 3}])
def test_launches_that_record_losses_do_not_measure_speed(steps: dict[str, int]) -> None:
    """Also where the request counts as many steps: the trials are the same then, but not their stage."""
    _tuned(verify_loss=None, output_dir="plain", **steps)
    _tuned(**steps)
    without, verified = tuning_in("plain"), tuning_in()
    assert len(_loss_launches()) == 2 and without["loss_check"] is None
    for name in ("combinations", "levers", "confirmed"):
        assert verified[name] == without[name]
    known = {result.trial_id for result in results_of("plain")}
    assert ({result.trial_id for result in _loss_launches()} <= known) == bool(steps)


def test_what_trains_to_another_loss_is_not_recommended() -> None:
    report = _tuned(_with_loss(1.5))
    tuning = tuning_in()
    assert (tuning["recommended"], tuning["loss_check"]["differs"]) == (False, True)
    assert (
        "but not recommended: the loss differs by +50.0 % over the last 50 of 200 steps." in tuning["verdict"]
    )
    assert report.headline == tuning["verdict"]
    assert not Path("run/tuned.yaml").exists()
    assert report.next_step is None
    statuses = {lever["lever"]: lever["status"] for lever in tuning["levers"]}
    assert statuses["precision bf16"] == "loss differs"
    row = next(row for row in tuning["combinations"] if row["levers"] == tuning["winner"])
    assert (row["loss_differs"], row["loss_change"]) == (True, pytest.approx(0.5))
    figure = _figure(report)
    current, winner = figure.panels[0].series
    assert (current.label, winner.label) == ("current settings", "jit True + precision bf16")
    assert len(current.x) == len(winner.x) == 50  # means of four steps
    assert current.x[-1] == STEPS and (current.y[0], current.y[-1]) == (2.0, 2.0)
    assert (winner.y[0], winner.y[-1]) == (2.0, 3.0)
    assert figure.notes == ("Each point is the mean of 4 steps.",)
    assert "+50.0 %" in figure.alt
    assert "<svg" in svg_for_page(figure)


def _figure(report: Report) -> Any:
    assert report.run is not None
    made = chapter(ReportInput((AnalyzedRun(report.run),), "title"))
    assert made is not None
    return next((figure for figure in made.figures if figure.name == "loss_curves"), None)


def test_few_steps_are_drawn_as_they_are_and_none_without_the_flag() -> None:
    figure = _figure(_tuned(verify_loss=40))
    assert len(figure.panels[0].series[0].x) == 40
    assert figure.notes == ()
    assert _figure(_tuned(verify_loss=None, output_dir="plain")) is None


def test_a_winner_that_fails_over_many_steps_is_not_recommended() -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        broken = _is_long(trial) and trial.settings["precision"] == "bf16"
        return Outcome(status="invalid", reason="the loss is not finite at step 90") if broken else None

    report = _tuned(outcome)
    assert tuning_in()["recommended"] is False
    text = "but not recommended: over 200 steps it failed (invalid: the loss is not finite at step 90)."
    assert report.headline is not None and report.headline.endswith(text)
    assert report.exit_code == 0  # an answer, not an error


def test_current_settings_that_fail_over_many_steps_leave_the_losses_unknown() -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        broken = _is_long(trial) and trial.settings["precision"] == "fp32"
        return Outcome(status="failed", reason="it broke") if broken else None

    report = _tuned(outcome)
    assert [result.status for result in _loss_launches()] == ["failed", "failed"]
    assert tuning_in()["recommended"] is True
    assert tuning_in()["loss_check"]["change"] is None
    lines = [line for section in report.sections for line in section.lines]
    assert any("could not be compared: the current settings failed" in line for line in lines)


def test_nothing_is_verified_where_nothing_is_recommended() -> None:
    _tuned(launcher=FakeLauncher(model_of({(BF16,): 1.5, (JIT,): 1.5})))
    assert _loss_launches() == []
    assert tuning_in()["loss_check"] is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A launch takes 2 s to start, and its steps what the model says."""
    made: Clock = campaign_clock(
        monkeypatch, Clock(lambda trial: 2.0 + MODEL.step_time_s(trial) * (trial.steps or 0))
    )
    return made


def test_time_for_the_losses_is_kept_back(clock: Clock) -> None:
    """No launch of the search may go on into the time that recording losses takes."""
    ends = []
    for verify_loss in (None, STEPS):
        began_s = clock.now_s
        launcher = FakeLauncher(MODEL, outcomes=clock.launch)
        _tuned(verify_loss=verify_loss, launcher=launcher, budget="100s", output_dir=f"run-{verify_loss}")
        assert launcher.deadlines[1] is not None
        ends.append(launcher.deadlines[1] - began_s)
        assert clock.now_s - began_s <= 100.0
    current, winner = _loss_launches(f"run-{STEPS}")
    assert ends[0] - ends[1] >= current.duration_s + winner.duration_s
    assert tuning_in(f"run-{STEPS}")["loss_check"]["change"] == 0.0


def test_losses_that_take_too_much_of_the_budget_are_left_out_and_resumed(clock: Clock) -> None:
    report = _tuned(clock.launch, verify_loss=20_000, budget="60s")
    assert _loss_launches() == []
    assert tuning_in()["recommended"] is True  # the search had the whole budget
    line = "Losses over 20000 steps were not compared; a larger --budget allows it."
    assert line in report.sections[0].lines
    again = _tuned(clock.launch, verify_loss=20_000, budget="5h", resume=True)
    assert len(_loss_launches()) == 2
    assert line not in again.sections[0].lines
