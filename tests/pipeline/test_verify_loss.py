"""`tune --verify-loss`: two longer launches after the search say whether the winner trains as before."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.fake import CostModel, FakeLauncher
from scalescope.launch.launcher import Outcome
from scalescope.report.analyzed_run import AnalyzedRun, ReportInput
from scalescope.report.chapters.levers import chapter
from scalescope.report.render.drawing import svg_for_page
from scalescope.results.result import Result
from scalescope.results.run import load_run
from scalescope.studies import campaign
from scalescope.studies.stored import present
from scalescope.studies.study import Report
from scalescope.studies.tuning.tune import TuneStudy
from tests.builders.studies import tune
from tests.pipeline.recording import RecordingWatcher, ask

BF16, JIT = ("precision", "bf16"), ("jit", True)
MODEL = CostModel(launch_noise=0.004, factors={(BF16,): 0.7, (JIT,): 0.8})
STEPS = 200
Outcomes = Callable[[Trial, int], Outcome | None]


def _nothing(trial: Trial, launch: int) -> Outcome | None:
    return None


def _tuned(outcomes: Outcomes = _nothing, verify_loss: int | None = STEPS, **asked: Any) -> Report:
    options = {"levers": ("precision", "jit"), "verify_loss": verify_loss}
    request = ask("tune", world_size=2, **{"budget": "1h", **asked})
    return tune(request, FakeLauncher(MODEL, outcomes=outcomes), RecordingWatcher(), **options)


def _tuning(path: str = "run") -> dict[str, Any]:
    tuning: dict[str, Any] = json.loads(Path(path, "tuning.json").read_text())
    return tuning


def _loss_launches(path: str = "run") -> list[Result]:
    return [r for r in load_run(path).results if r.stage is not None and r.stage.kind == "loss"]


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
    assert load_run("run").results[-2:] == (current, winner)
    assert current.settings["precision"] == "fp32" and winner.settings["precision"] == "bf16"
    assert {len(rank.samples["loss"]) for r in (current, winner) for rank in r.ranks} == {STEPS}
    assert current.settings["steps_per_epoch"] == STEPS + current.settings["warmup_steps"]
    check = _tuning()["loss_check"]
    assert (check["steps"], check["last_steps"], check["change"], check["differs"]) == (200, 50, 0.0, False)
    assert _tuning()["recommended"] is True
    line = "The loss differs by +0.0 % over the last 50 of 200 steps, within the tolerance."
    assert line in report.sections[0].lines


def test_launches_that_record_losses_do_not_measure_speed() -> None:
    plain = _tuned(verify_loss=None, output_dir="plain")
    _tuned()
    without, verified = _tuning("plain"), _tuning()
    assert without["loss_check"] is None and plain.exit_code == 0
    assert verified["combinations"] == without["combinations"]
    assert verified["levers"] == without["levers"]
    assert verified["confirmed"] == without["confirmed"]


def test_a_request_that_counts_as_many_steps_keeps_its_speed_apart() -> None:
    """The trials are the same then; the stage tells them apart."""
    steps = {"steps_per_epoch": STEPS + 3, "warmup_steps": 3}
    _tuned(verify_loss=None, output_dir="plain", **steps)
    _tuned(**steps)
    assert len(_loss_launches()) == 2
    assert {r.trial_id for r in _loss_launches()} <= {r.trial_id for r in load_run("plain").results}
    assert _tuning()["combinations"] == _tuning("plain")["combinations"]


def test_what_trains_to_another_loss_is_not_recommended() -> None:
    report = _tuned(_with_loss(1.5))
    tuning = _tuning()
    assert (tuning["recommended"], tuning["loss_check"]["differs"]) == (False, True)
    assert (
        "but not recommended: the loss differs by +50.0 % over the last 50 of 200 steps." in tuning["verdict"]
    )
    assert report.headline == tuning["verdict"]
    assert not Path("run/tuned.yaml").exists()
    assert report.next_step is None
    statuses = {lever["lever"]: lever["status"] for lever in tuning["levers"]}
    assert statuses["precision bf16"] == "loss differs"
    winner = next(c for c in tuning["combinations"] if c["levers"] == tuning["winner"])
    assert (winner["loss_differs"], winner["loss_change"]) == (True, pytest.approx(0.5))


def test_a_winner_that_fails_over_many_steps_is_not_recommended() -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        broken = _is_long(trial) and trial.settings["precision"] == "bf16"
        return Outcome(status="invalid", reason="the loss is not finite at step 90") if broken else None

    report = _tuned(outcome)
    assert _tuning()["recommended"] is False
    text = "but not recommended: over 200 steps it failed (invalid: the loss is not finite at step 90)."
    assert report.headline is not None and report.headline.endswith(text)
    assert report.exit_code == 0  # an answer, not an error


def test_current_settings_that_fail_over_many_steps_leave_the_losses_unknown() -> None:
    def outcome(trial: Trial, launch: int) -> Outcome | None:
        broken = _is_long(trial) and trial.settings["precision"] == "fp32"
        return Outcome(status="failed", reason="it broke") if broken else None

    report = _tuned(outcome)
    assert [r.status for r in _loss_launches()] == ["failed", "failed"]
    assert _tuning()["recommended"] is True
    assert _tuning()["loss_check"]["change"] is None
    assert any("could not be compared: the current settings failed" in n for n in report.sections[0].lines)


def test_nothing_is_verified_where_nothing_is_recommended() -> None:
    model = CostModel(launch_noise=0.004, factors={(BF16,): 1.5, (JIT,): 1.5})
    request = ask("tune", world_size=2, budget="1h")
    tune(request, FakeLauncher(model), RecordingWatcher(), levers=("precision", "jit"), verify_loss=STEPS)
    assert _loss_launches() == []
    assert _tuning()["loss_check"] is None


class _Clock:
    """A launch takes 2 s to start, and its steps what the model says."""

    START_S = 2.0

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def launch(self, trial: Trial, launch: int) -> Outcome | None:
        self.now_s += self.START_S + MODEL.step_time_s(trial) * (trial.steps or 0)
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def test_time_for_the_losses_is_kept_back(clock: _Clock) -> None:
    """No launch of the search may go on into the time that recording losses takes."""
    ends = []
    for verify_loss in (None, STEPS):
        began_s = clock.now_s
        launcher = FakeLauncher(MODEL, outcomes=clock.launch)
        options = {"levers": ("precision", "jit"), "verify_loss": verify_loss}
        request = ask("tune", world_size=2, budget="100s", output_dir=f"run-{verify_loss}")
        tune(request, launcher, RecordingWatcher(), **options)
        assert launcher.deadlines[1] is not None
        ends.append(launcher.deadlines[1] - began_s)
        assert clock.now_s - began_s <= 100.0
    current, winner = _loss_launches(f"run-{STEPS}")
    assert ends[0] - ends[1] >= current.duration_s + winner.duration_s
    assert _tuning(f"run-{STEPS}")["loss_check"]["change"] == 0.0


def test_losses_that_take_too_much_of_the_budget_are_left_out_and_resumed(clock: _Clock) -> None:
    report = _tuned(clock.launch, verify_loss=20_000, budget="60s")
    assert _loss_launches() == []
    assert _tuning()["recommended"] is True  # the search had the whole budget
    line = "Losses over 20000 steps were not compared; a larger --budget allows it."
    assert line in report.sections[0].lines
    again = _tuned(clock.launch, verify_loss=20_000, budget="5h", resume=True)
    assert len(_loss_launches()) == 2
    assert line not in again.sections[0].lines


def test_the_flag_is_stored_and_read_back() -> None:
    study = TuneStudy(verify_loss=300)
    assert TuneStudy.from_flags(study.flags()).verify_loss == 300
    assert TuneStudy.from_flags(TuneStudy().flags()).verify_loss is None
    _tuned()
    read = json.loads(present(load_run("run")).files["tuning.json"]())
    assert read["loss_check"] == _tuning()["loss_check"]


def test_ranks_of_torchrun_have_nothing_to_verify() -> None:
    launcher, watcher = FakeLauncher(MODEL), RecordingWatcher()
    launcher.repeatable = False
    tune(ask("tune", world_size=2), launcher, watcher, levers=("precision",), verify_loss=STEPS)
    assert _loss_launches() == []
    assert any(note.startswith("--verify-loss is left out") for note in watcher.notes)


# The page


def _figure(report: Report) -> Any:
    assert report.run is not None
    made = chapter(ReportInput((AnalyzedRun(report.run),), "title"))
    assert made is not None
    return next((figure for figure in made.figures if figure.name == "loss_curves"), None)


def test_the_page_draws_both_curves() -> None:
    figure = _figure(_tuned(_with_loss(1.5)))
    current, winner = figure.panels[0].series
    assert (current.label, winner.label) == ("current settings", "jit True + precision bf16")
    assert len(current.x) == len(winner.x) == 50  # means of four steps
    assert current.x[-1] == STEPS and (current.y[0], current.y[-1]) == (2.0, 2.0)
    assert (winner.y[0], winner.y[-1]) == (2.0, 3.0)
    assert figure.notes == ("Each point is the mean of 4 steps.",)
    assert "+50.0 %" in figure.alt
    assert "<svg" in svg_for_page(figure)


def test_few_steps_are_drawn_as_they_are() -> None:
    figure = _figure(_tuned(verify_loss=40))
    assert len(figure.panels[0].series[0].x) == 40
    assert figure.notes == ()


def test_without_the_flag_there_are_no_curves() -> None:
    assert _figure(_tuned(verify_loss=None)) is None
