"""`compare --interleave`: both sides measured again in turns, and compared inside that run."""

import dataclasses
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun, Interrupted
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.report.comparison.two_runs import Compared
from scalescope.results.run import Run, load_run
from scalescope.results.run_commands import repeating_command
from scalescope.results.run_record import RunRecord, write_run_record
from scalescope.studies.comparison.compare import compare
from scalescope.studies.comparison.interleave import Limits, interleave_changes, interleave_runs
from scalescope.studies.stored import explain
from tests.builders.studies import train
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask

CALM = CostModel(launch_noise=0.004)
SLOW_RATE = dataclasses.replace(CALM, factors={(("lr", 0.5),): 1.05})
LIMITS = Limits(threshold=0.03, budget_s=600.0, window_s=3.0)


def measured(name: str, model: CostModel = CALM, **asked: Any) -> Run:
    request = ask("train", output_dir=name, **{"batch_size": [16, 64], "repeats": 3, **asked})
    report = train(request, FakeLauncher(model), RecordingWatcher())
    assert report.run is not None
    return report.run


def in_turns(base: Run, new: Run, launcher: FakeLauncher, **limits: float) -> Compared:
    return interleave_runs(base, new, dataclasses.replace(LIMITS, **limits), launcher, RecordingWatcher())


def run_of(compared: Compared) -> Run:
    (path,) = Path("runs").glob("*-compare")
    assert any(str(path) in note for note in compared.notes)
    return load_run(path)


def test_two_runs_are_measured_in_turns_and_told_apart() -> None:
    """What two runs cannot decide, launches in turns do: there is no spread between runs in them."""
    base, new = measured("a"), measured("b", SLOW_RATE, lr=0.5)
    launcher = FakeLauncher(SLOW_RATE)
    compared = in_turns(base, new, launcher)
    assert [config.verdict for config in compared.comparison.judged] == ["slower", "slower"]
    assert [config.change for config in compared.comparison.judged] == pytest.approx(
        [1 / 1.05 - 1] * 2, abs=0.01
    )
    assert compared.comparison.spread.deviation == 0.0
    rounds = [launcher.launched[n : n + 4] for n in range(0, len(launcher.launched), 4)]
    assert len(rounds) >= 5
    for number, launches in enumerate(rounds):  # every configuration once in every round
        assert {launch for _, launch in launches} == {number}
        assert len({trial for trial, _ in launches}) == 4
    assert len({tuple(trial for trial, _ in launches) for launches in rounds}) > 1  # in a random order
    run = run_of(compared)
    assert len(run.results) == len(launcher.launched)
    assert repeating_command(run.path, run.record) == ()  # no request alone makes it again
    assert explain(run.path)


def test_a_setting_is_changed_for_the_new_side() -> None:
    base = measured("a")
    compared = interleave_changes(
        base, {"lr": (Given("0.5", "--set lr=0.5"),)}, LIMITS, FakeLauncher(SLOW_RATE), RecordingWatcher()
    )
    assert (compared.base, compared.new) == ("as in a", "with lr 0.5")
    assert {config.verdict for config in compared.comparison.judged} == {"slower"}


def test_there_are_twenty_rounds_whatever_they_show_unless_the_budget_ends_them() -> None:
    noisy = dataclasses.replace(CALM, launch_noise=0.02)
    base, new = measured("a"), measured("b", lr=0.5)
    for model in (CALM, noisy):
        launcher = FakeLauncher(model)
        in_turns(base, new, launcher)
        counts = Counter(trial_id for trial_id, _ in launcher.launched)
        assert set(counts.values()) == {20}
    with pytest.raises(CannotRun, match="no launch succeeded on both sides"):
        in_turns(base, new, FakeLauncher(noisy), budget_s=0.0)


def test_a_setting_that_changes_nothing_is_refused() -> None:
    base = measured("a")
    for changes, message in (
        ({"lr": (Given("0.01", "--set"),)}, "was measured with these settings"),
        ({"batch_size": (Given("16", "--set"),)}, "another value"),
        ({"no_such": (Given("16", "--set"),)}, "unknown key no_such"),
    ):
        with pytest.raises(BadInput, match=message):
            interleave_changes(base, changes, LIMITS, FakeLauncher(CALM), RecordingWatcher())


def test_the_same_settings_and_code_are_one_configuration() -> None:
    with pytest.raises(BadInput, match="measured in turns, both would be the same configuration"):
        in_turns(measured("a"), measured("b"), FakeLauncher(CALM))


def test_a_run_whose_launches_were_chosen_is_refused() -> None:
    base = measured("a")
    write_run_record(base.path, RunRecord(verb="tune"))
    with pytest.raises(BadInput, match="a is not a run of train, scale, run"):
        in_turns(load_run(base.path), measured("b", lr=0.5), FakeLauncher(CALM))


def test_other_hardware_is_refused() -> None:
    other = dataclasses.replace(TWO_CORES, cores=4)
    with pytest.raises(CannotRun, match=r"different hardware \(cores: 2, here 4\)"):
        in_turns(measured("a"), measured("b", lr=0.5), FakeLauncher(CALM, machine=other))


def test_a_side_that_fails_is_not_waited_for() -> None:
    def fail(trial: Trial, launch: int) -> Outcome | None:
        broken = trial.settings["lr"] == 0.5 and trial.rank_batch_size == 64
        return Outcome(status="oom", reason="out of memory") if broken else None

    compared = in_turns(measured("a"), measured("b", lr=0.5), FakeLauncher(CALM, outcomes=fail))
    assert [config.trial.rank_batch_size for config in compared.comparison.judged] == [16]


def test_an_interruption_has_the_answer_so_far() -> None:
    def stop(trial: Trial, launch: int) -> Outcome | None:
        if launch == 3:
            raise Interrupted(2)
        return None

    with pytest.raises(Interrupted) as stopped:
        in_turns(measured("a"), measured("b", lr=0.5), FakeLauncher(SLOW_RATE, outcomes=stop))
    assert isinstance(stopped.value.report, Compared)
    assert all(config.launches == (3, 3) for config in stopped.value.report.comparison.judged)


def test_an_interruption_before_both_sides_were_measured_has_no_answer() -> None:
    def stop(trial: Trial, launch: int) -> Outcome | None:
        raise Interrupted(2)

    with pytest.raises(Interrupted) as stopped:
        in_turns(measured("a"), measured("b", lr=0.5), FakeLauncher(CALM, outcomes=stop))
    assert stopped.value.report is None


def test_other_versions_now_are_reported() -> None:
    newer = dataclasses.replace(TWO_CORES, torch_version="2.14.0")
    compared = in_turns(measured("a"), measured("b", lr=0.5), FakeLauncher(CALM, machine=newer))
    assert any("torch_version 2.13.0, now 2.14.0" in note for note in compared.notes)


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def committed(text: str) -> None:
    Path("model.py").write_text(f"def build():\n    return {text}\n")
    git("add", "model.py")
    git("commit", "-m", text)


def test_the_old_code_is_restored_from_its_commit() -> None:
    """An own workload that changed in place is measured as it was and as it is."""
    git("init")
    own = {"workload": "model.py:build", "batch_size": 16}
    committed("'old'")
    base = measured("a", **own)
    committed("'new'")
    new = measured("b", **own)
    sections = compare(Path("a"), Path("b"), 0.012).sections
    commands = [command for section in sections for command in section.commands]
    assert [command.argv for command in commands] == [("scalescope", "compare", "a", "b", "--interleave")]
    read: list[str] = []

    def remember(trial: Trial, launch: int) -> Outcome | None:
        read.append(Path(trial.workload.removesuffix(":build")).read_text())
        return None

    compared = in_turns(base, new, FakeLauncher(CALM, outcomes=remember))
    assert {"'old'" in text for text in read} == {True, False}
    assert {"'new'" in text for text in read} == {True, False}
    assert any("The old code is from commit" in note for note in compared.notes)
    assert Path("model.py").read_text().count("'new'") == 1
