"""What can never run here is refused before a launch, and before torch where the system says enough."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.machine import Machine
from scalescope.studies import running
from scalescope.studies.study import Report
from tests.builders.calling import called
from tests.builders.requests import with_gpus
from tests.builders.studies import comm, memory, scale, train, tune
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

from .recording import RecordingWatcher, ask

Verb = Callable[..., Report]
FAST = CostModel(parameter_bytes=1000, activation_bytes=10, temporary_bytes=0, device_bytes=1 << 34)


class WithoutTorch(FakeLauncher):
    """Knows the machine by the system alone; loading torch would be an error."""

    def outlook(self, devices: Sequence[str]) -> Machine | None:
        return self._machine

    def machine(self) -> Machine:
        raise AssertionError("torch was loaded")


def request(verb: str, **asked: Any) -> Any:
    benchmark = {"memory": "memory", "comm": "comm"}.get(verb, "train")
    made = dataclasses.replace(ask(verb, **asked), benchmark=benchmark)
    if benchmark == "train":
        return made
    flags = {name: given for name, given in made.flags.items() if name in asked}
    return dataclasses.replace(made, flags=flags)


def refusal(verb: Verb, launcher: FakeLauncher, **asked: Any) -> str:
    with pytest.raises(CannotRun) as caught:
        verb(request(verb.__name__, **asked), launcher, RecordingWatcher())
    assert launcher.launched == []
    return str(caught.value)


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        (train, FakeLauncher),
        (train, WithoutTorch),
        (scale, WithoutTorch),
        (tune, WithoutTorch),
        (memory, WithoutTorch),
    ],
)
def test_a_batch_beyond_the_memory_is_refused(verb: Verb, kind: type[FakeLauncher]) -> None:
    text = refusal(verb, kind(FAST), batch_size=10**9, world_size=1)
    assert "needs at least 31.7 TiB per rank" in text
    assert "only 16.0 GiB of memory" in text
    assert "--allow-oom" in text
    assert "at most --batch-size 49" in text


def test_the_batch_that_is_named_is_not_refused() -> None:
    text = refusal(train, FakeLauncher(FAST), batch_size=10**9)
    largest = int(text.split("--batch-size ")[1].split()[0])
    train(request("train", batch_size=largest), FakeLauncher(FAST), RecordingWatcher())
    refusal(train, FakeLauncher(FAST), batch_size=largest + 1)


def test_what_the_system_alone_excludes_is_refused_before_torch() -> None:
    text = refusal(train, WithoutTorch(FAST), hidden_dim=10**6, batch_size=1)
    assert "the model alone does not fit" in text
    assert "3 ranks on 2 GPU(s)" in refusal(train, WithoutTorch(FAST, with_gpus(2)), world_size=3)
    assert "fp16" in refusal(train, WithoutTorch(FAST), precision="fp16")
    with pytest.raises(BadInput, match="divisible"):
        train(request("train", global_batch_size=5, world_size=2), WithoutTorch(FAST), RecordingWatcher())


def test_ranks_of_a_host_share_its_memory() -> None:
    batch = 300_000  # 10 GiB of 16
    train(request("train", batch_size=batch), FakeLauncher(FAST), RecordingWatcher())
    text = refusal(train, FakeLauncher(FAST), batch_size=batch, world_size=2)
    assert "8.00 GiB of memory for each rank" in text


def test_a_gpu_has_its_own_memory() -> None:
    gpus = with_gpus(2)
    batch = 300_000
    train(request("train", batch_size=1000, world_size=2), FakeLauncher(FAST, gpus), RecordingWatcher())
    assert "GPU memory" in refusal(train, FakeLauncher(FAST, gpus), batch_size=batch, world_size=2)


def test_forcing_starts_it_and_changes_no_trial_and_unknown_memory_refuses_nothing() -> None:
    forced, plain = RecordingWatcher(), RecordingWatcher()
    train(request("train", batch_size=10**9, allow_oom="yes"), FakeLauncher(FAST), forced)
    roomy = dataclasses.replace(TWO_CORES, memory_bytes=1 << 50)
    train(request("train", batch_size=10**9, output_dir="roomy"), FakeLauncher(FAST, roomy), plain)
    assert [trial.trial_id for trial, _ in forced.launched] == [trial.trial_id for trial, _ in plain.launched]
    unknown = FakeLauncher(FAST, dataclasses.replace(TWO_CORES, memory_bytes=None))
    train(request("train", batch_size=10**9, output_dir="unknown"), unknown, RecordingWatcher())


def test_memory_may_run_out_where_that_is_bounded() -> None:
    asked = request("memory", batch_size=10**9, memory_limit="1GiB", search="no")
    assert memory(asked, FakeLauncher(FAST), RecordingWatcher()).exit_code == 0
    asked = request("memory", batch_size=10**9, search="no")
    assert memory(asked, FakeLauncher(FAST, with_gpus(1)), RecordingWatcher()).exit_code == 0


def test_tune_leaves_out_a_value_that_cannot_fit() -> None:
    watcher = RecordingWatcher()
    asked = request("tune", batch_size=100_000, repeats=1)
    tune(asked, FakeLauncher(FAST), watcher, levers=("batch_size",))
    batches = {trial.batch_size for trial, _ in watcher.launched}
    assert 200_000 in batches and 800_000 not in batches


@pytest.mark.parametrize("verb", [train, comm])
def test_far_more_ranks_than_cores_are_refused_unless_forced(verb: Verb) -> None:
    text = refusal(verb, WithoutTorch(FAST), world_size=65)
    assert "65 ranks on 2 core(s)" in text
    assert "--world-size 64" in text and "--oversubscribe" in text
    if verb is train:
        watcher = RecordingWatcher()
        train(request("train", world_size=65, oversubscribe="yes", batch_size=1), FakeLauncher(FAST), watcher)
        (trial,) = {trial.trial_id: trial for trial, _ in watcher.launched}.values()
        assert not trial.oversubscribe  # it is about GPUs, and part of a trial's identity


@pytest.mark.parametrize("flag", ["--batch-size=100000000", "--hidden-dim=1000000", "--world-size=500"])
def test_the_command_line_refuses_before_it_loads_torch_and_writes_nothing(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "LocalLauncher", lambda: WithoutTorch(FAST))
    ended = called(capsys, "scale", flag)
    assert ended.code == CannotRun.exit_code
    assert len(ended.err.splitlines()) == 1
    assert ("needs at least" in ended.err) == ("--allow-oom" in ended.err) == ("world" not in flag)
    assert list(Path().iterdir()) == []
