"""Run folders of every verb, made by the fake launcher: what a report is made of."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from scalescope.results.run_folder import RunFolder
from scalescope.studies.request import Request
from tests.builders.studies import comm, memory, scale, train, tune
from tests.pipeline.recording import RecordingWatcher, ask
from tests.simulated.launcher import CostModel, FakeLauncher

MODEL = CostModel(
    fixed_s=0.010,
    per_sample_s=0.0002,
    wrapper_s=0.0005,
    exposed_comm_s={2: 0.006, 4: 0.012},
    launch_noise=0.004,
    step_noise=0.01,
    activation_bytes=2_000_000,
)
FASTER = {(("precision", "bf16"),): 0.7, (("fused_optimizer", True),): 1.2}
VERBS = ("scale", "comm", "memory", "tune", "train")
HOSTILE = '<script>alert("$x_1$")</script> & 100 % \\ #\n=1+1 [a]|b'


def make_runs(root: Path, verbs: Iterable[str] = VERBS) -> Path:
    """One run of each verb below `root`, as a person would have them after a day."""
    for verb in verbs:
        _MAKERS[verb](str(root / verb))
    return root


def _scale(path: str) -> None:
    request = ask("scale", output_dir=path, world_size=[1, 2, 4], batch_size=[16, 64], repeats=3)
    scale(request, FakeLauncher(MODEL), RecordingWatcher())


def _comm(path: str) -> None:
    made = ask(
        "comm", output_dir=path, collective="all_reduce", min_bytes="1K", max_bytes="16M", step_factor=4
    )
    comm(_only(made, "comm"), FakeLauncher(MODEL), RecordingWatcher())


def _memory(path: str) -> None:
    memory(_only(ask("memory", output_dir=path), "memory"), FakeLauncher(MODEL), RecordingWatcher())


def _tune(path: str) -> None:
    model = dataclasses.replace(MODEL, factors=FASTER)
    options = {"levers": ("precision", "fused_optimizer", "bucket_cap_mb"), "combine": False}
    tune(ask("tune", output_dir=path, world_size=2), FakeLauncher(model), RecordingWatcher(), **options)


def _train(path: str) -> None:
    data = Path(path).parent / "data"
    data.mkdir(parents=True, exist_ok=True)
    for name in ("train.csv", "test.csv"):
        (data / name).write_text("text,label\ngood,1\n")
    request = ask(
        "train",
        output_dir=path,
        workload="transformer",
        data="imdb",
        data_dir=data,
        steps_per_epoch=8,
        world_size=[1, 2],
        batch_size=[8, 32],
        epochs=5,
        repeats=2,
    )
    train(request, Learning(MODEL), RecordingWatcher())


class Learning(FakeLauncher):
    """Ranks that record their epochs, and are right more often after each."""

    def launch(self, trial: Trial, launch: int, folder: RunFolder, *others: Any, **named: Any) -> Outcome:
        outcome = super().launch(trial, launch, folder, *others, **named)
        records = [_with_epochs(record, int(trial.settings["epochs"])) for record in outcome.records]
        return dataclasses.replace(outcome, records=records)


def _with_epochs(record: RankRecord, count: int) -> RankRecord:
    epochs = range(1, count + 1)
    step_s = record.samples["step_time_s"][0]
    learnt: dict[str, list[float]] = {
        "epoch_time_s": [step_s * 8 * (1.5 if epoch == 1 else 1.0) for epoch in epochs],
        "train_accuracy": [1.0 - 0.5 / epoch for epoch in epochs],
        "validation_accuracy": [0.95 - 0.5 / epoch for epoch in epochs],
    }
    return dataclasses.replace(record, samples={**record.samples, **learnt})


class Failing(FakeLauncher):
    """Ranks that never finish."""

    def launch(self, trial: Trial, launch: int, folder: RunFolder, *others: Any, **named: Any) -> Outcome:
        return Outcome(status="failed", reason="rank 1 failed at step 3: no luck", rank=1, step=3)


def make_failures(path: Path) -> Path:
    """A run of which every launch failed."""
    train(ask("train", output_dir=str(path), world_size=2), Failing(MODEL), RecordingWatcher())
    return path


def _only(request: Request, benchmark: str) -> Request:
    """Without the settings of training steps."""
    flags = {n: v for n, v in request.flags.items() if n not in ("steps_per_epoch", "warmup_steps")}
    return dataclasses.replace(request, benchmark=benchmark, flags=flags)


_MAKERS = {"scale": _scale, "comm": _comm, "memory": _memory, "tune": _tune, "train": _train}
