"""Which launches are recorded, what is refused, and the command for another profiler."""

import subprocess
from pathlib import Path

import pytest

from scalescope.catalog.benchmarks.profile import Profile
from scalescope.errors import BadInput
from scalescope.studies.trace import Profiling, nsys_command, nsys_script, run_nsys
from tests.builders.results import make_trial

TRIAL = make_trial(world_size=2)


def test_every_timed_trial_has_a_recorded_one() -> None:
    trials = (TRIAL, make_trial(world_size=1))
    recorded_trials = Profiling(steps=7).trials(trials)
    assert [trial.world_size for trial in recorded_trials] == [2, 1]
    for profiled, timed in zip(recorded_trials, trials, strict=True):
        added = {name: value for name, value in profiled.settings.items() if name not in timed.settings}
        assert added == {"profile_steps": 7, "profile_ranks": "all", "profile_with": "torch"}
        assert profiled.replace(benchmark="train").settings.items() >= timed.settings.items()
        assert profiled.settings["benchmark"] == "profile"
        assert profiled.trial_id != timed.trial_id
    (ranges,) = Profiling(ranges_only=True).trials([TRIAL])  # for another profiler
    assert ranges.settings["profile_with"] == "nvtx"


@pytest.mark.parametrize(
    ("asked", "ranks"), [("all", "all"), ("1", "1"), ("1,0", "0,1"), ("0,0", "0"), ("01", "1")]
)
def test_ranks_are_put_in_order(asked: str, ranks: str) -> None:
    (recorded_trial,) = Profiling(ranks=asked).trials([TRIAL])
    assert recorded_trial.settings["profile_ranks"] == ranks


@pytest.mark.parametrize("asked", ["2", "0,7", "1,10"])
def test_a_rank_that_does_not_exist_is_refused(asked: str) -> None:
    highest = asked.rpartition(",")[2]
    with pytest.raises(BadInput) as caught:
        Profiling(ranks=asked).trials([TRIAL])
    assert str(caught.value) == f"--profile-ranks {asked}: there is no rank {highest}; ranks are 0 to 1"


@pytest.mark.parametrize("asked", ["x", "0,", "-1", "1.0", "", "²"])
def test_what_is_no_list_of_ranks_is_refused(asked: str) -> None:
    with pytest.raises(BadInput) as caught:
        Profiling(ranks=asked).trials([TRIAL])
    assert str(caught.value) == f"--profile-ranks {asked!r}: expected all, or numbers such as 0,1"


def test_trials_without_a_chosen_rank_are_not_recorded() -> None:
    trials = [make_trial(world_size=1), TRIAL]
    (recorded_trial,) = Profiling(ranks="1").trials(trials)
    assert (recorded_trial.world_size, recorded_trial.settings["profile_ranks"]) == (2, "1")
    alone, both = Profiling(ranks="0,1").trials(trials)
    assert (alone.settings["profile_ranks"], both.settings["profile_ranks"]) == ("0", "0,1")
    with pytest.raises(BadInput, match="there is no rank 2; ranks are 0 to 1"):
        Profiling(ranks="0,2").trials(trials)


@pytest.mark.parametrize(("ranks", "chosen"), [("all", [0, 1, 10]), ("1", [1]), ("0,10", [0, 10])])
def test_only_chosen_ranks_record(ranks: str, chosen: list[int]) -> None:
    (trial,) = Profiling(ranks=ranks).trials([make_trial(world_size=11, oversubscribe=True)])
    options = trial.options(Profile)
    assert [rank for rank in (0, 1, 10) if options.records(rank)] == chosen


def test_a_recorded_launch_warms_up_beyond_the_steps_that_ddp_times_itself() -> None:
    (trial,) = Profiling(steps=2).trials([TRIAL])
    assert trial.options(Profile).warmup > 10
    assert trial.steps == trial.options(Profile).warmup + (2 + 1) + (2 + 2)
    (patient,) = Profiling(steps=2).trials([make_trial(world_size=2, steps_per_epoch=50, warmup_steps=20)])
    assert patient.options(Profile).warmup == 20


def test_nsight_systems_runs_the_same_request_with_ranges_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = nsys_command(Path("/runs/a"), Profiling(steps=5, ranks="0,1"), 4)
    program = command.index("scalescope")
    around, request = command[:program], command[program:]
    assert around[:2] == ["nsys", "profile"]
    assert "--output=/runs/a/traces/nsys" in around
    assert "--nvtx-capture=scalescope.captured" in around
    assert "--capture-range-end=repeat:4" in around
    assert request == [
        "scalescope",
        "train",
        "/runs/a/experiment.yaml",
        "--profile",
        "--profile-steps=5",
        "--profile-ranks=0,1",
        "--profile-ranges-only",
    ]
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "run" / "experiment.yaml") in nsys_command(Path("run"), Profiling(), 2)


def test_a_shell_reads_the_script_as_it_was_meant(tmp_path: Path) -> None:
    words = ["printf", "%s\n", "two words", "it's", "$HOME", "`id`", "a\\b"]
    script = tmp_path / "script.sh"
    script.write_text(nsys_script(words))
    ended = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == words[2:]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", "done"),
        ("echo first >&2; echo 'no permission' >&2; exit 3", "nsys ended with 3: no permission"),
        ("echo only here; exit 1", "nsys ended with 1: only here"),
        ("exit 1", "nsys ended with 1: no output"),
    ],
)
def test_the_outcome_of_nsys_is_reported_in_one_line(script: str, message: str) -> None:
    assert run_nsys(["sh", "-c", script]) == message
