"""The local launcher: which process ranks are forked from, and the memory that a rank's model may take."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from scalescope.experiment.trial import Trial
from scalescope.launch.local import launcher as local
from scalescope.launch.local.processes import SpawnFailed, SpawnTimeout
from scalescope.results.ranks import ROOM_VARIABLE
from scalescope.results.run_folder import RunFolder
from tests.builders.launching import usual_limits
from tests.builders.results import make_trial


class FakeZygote:
    """Remembers for how many threads it was started."""

    def __init__(self, threads: int, limit_s: float) -> None:
        self.threads = threads
        self.limit_s = limit_s
        self.is_open = self.is_usable = True

    def close(self) -> None:
        self.is_open = False


def trial(threads: int, device: str = "cpu") -> Trial:
    return Trial(settings={"threads_per_rank": threads, "device": device})


@pytest.fixture
def launcher() -> Iterator[Any]:
    with mock.patch.object(local, "Zygote", FakeZygote):
        made = local.LocalLauncher(fork=True, telemetry=False)
        yield made
        made.close()


def test_torch_is_loaded_for_what_most_trials_use(launcher: Any) -> None:
    launcher.expect([trial(3), trial(3), trial(5)])
    launcher.init_timeout_s = 7.0
    for_gpu = launcher._zygote_for(trial(5, device="cuda"))  # threads do not matter to ranks on a GPU
    assert (for_gpu.threads, for_gpu.limit_s) == (3, 7.0)
    assert launcher._zygote_for(trial(3)) is for_gpu


def test_another_number_of_threads_has_a_process_of_its_own(launcher: Any) -> None:
    launcher.expect([trial(3)])
    other = launcher._zygote_for(trial(5))
    assert other.threads == 5
    assert launcher._zygote_for(trial(5)) is other
    launcher.close()
    assert not other.is_open


def test_one_that_ended_or_is_stopped_is_replaced(launcher: Any) -> None:
    stopped, other = launcher._zygote_for(trial(3)), launcher._zygote_for(trial(5))
    stopped.is_usable = False
    replacement = launcher._zygote_for(trial(3))
    assert replacement is not stopped and replacement.is_usable
    assert not stopped.is_open
    assert launcher._zygote_for(trial(5)) is other


@pytest.mark.parametrize(("error", "status"), [(SpawnFailed, "failed"), (SpawnTimeout, "hang")])
def test_a_failed_start_costs_one_launch(
    launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[SpawnFailed], status: str
) -> None:
    started = launcher._zygote_for(trial(3))

    def fail(*_: object) -> None:
        raise error("no answer")

    monkeypatch.setattr(launcher, "_launch_in", fail)
    folder = RunFolder.open(tmp_path / "run", resume=False)
    try:
        outcome = launcher.launch(trial(3), 0, folder, usual_limits(), None)
    finally:
        folder.close()
    assert (outcome.status, outcome.reason) == (status, "no answer")
    assert not started.is_open
    assert launcher._zygote_for(trial(3)).is_open


def test_ranks_share_the_memory_of_the_host_unless_running_out_is_allowed_or_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "usable_memory", lambda: 1000)
    assert local.room_for(make_trial(world_size=2), usual_limits()) == {ROOM_VARIABLE: "500"}
    assert local.room_for(make_trial(), usual_limits(allow_oom=True)) == {}
    assert local.room_for(make_trial().replace(memory_limit=1 << 20), usual_limits()) == {}
    monkeypatch.setattr(local, "usable_memory", lambda: None)
    assert local.room_for(make_trial(), usual_limits()) == {}
