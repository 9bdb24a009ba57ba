"""The lines that `tune` prints, in a plain script on two real ranks: every lever trains as it did in a rank.

`torch.compile` uses a backend that makes no C++, as in `test_levers.py`.
"""

import contextlib
import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from scalescope.catalog.cards import all_settings
from scalescope.errors import ScalescopeError
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial, Value
from scalescope.report.tuning.code import changes_between, context_of, lever_codes
from tests.builders.plain_loop import LoopOptions, plain_loop
from tests.conftest import clean_environment
from tests.gloo.many_cases import RANKS, Outcomes, run_cases
from tests.simulated.launcher import TWO_CORES
from tests.speed import patience

pytestmark = pytest.mark.gloo

_STEPS = 5
_BATCH = 4
_WORKLOAD = Path(__file__).parents[1] / "image_workload.py"
_SETTINGS = {"workload": f"{_WORKLOAD}:build", "device": "cpu", "world_size": RANKS, "batch_size": _BATCH}
# Name of a job → its settings; persistence and prefetching require processes that load.
_JOBS: dict[str, dict[str, Any]] = {"plain": {}, "loader": {"num_workers": 1}}
_MORE_THREADS = 2
_VALUES = 2  # of a lever: others have the same lines with other numbers


def _trial(**settings: Any) -> Trial:
    flags = {name: (Given(str(value), f"--{name}"),) for name, value in {**_SETTINGS, **settings}.items()}
    (trial,) = expand(build_experiment("train", "train", {}, flags, {}), TWO_CORES).trials
    return trial


def _candidates() -> Iterator[tuple[str, Value]]:
    """Of every lever that `tune` may recommend on the CPU, the first values that it tries."""
    yield "threads_per_rank", _MORE_THREADS
    for name, versions in all_settings("train").items():
        lever = next((version.lever for version in versions if version.lever), None)
        if lever is not None and lever.changes != "the job" and name != "env":
            yield from ((name, value) for value in lever.tries_on("cpu")[:_VALUES])


@functools.cache
def trials_of(job: str) -> dict[str, Trial]:
    """The baseline and every candidate that runs here and has lines."""
    trials = {"baseline": _trial(**_JOBS[job])}
    needs_loader = ("persistent_workers", "prefetch_factor")
    for name, value in _candidates():
        if (name in needs_loader) == (job == "loader"):
            with contextlib.suppress(ScalescopeError):  # it is for a GPU
                trials[f"{name} {value}"] = _trial(**{**_JOBS[job], name: value})
    baseline = trials["baseline"]
    return {
        text: trial
        for text, trial in trials.items()
        if text == "baseline" or (trial != baseline and not _instead(baseline, trial))
    }


def _codes(baseline: Trial, trial: Trial) -> Any:
    return lever_codes(changes_between(baseline, trial), context_of(trial))


def _instead(baseline: Trial, trial: Trial) -> list[str]:
    return [lever.instead for lever in _codes(baseline, trial) if lever.instead]


def script_of(job: str, text: str) -> str:
    """The plain script with the lines that a candidate needs beside the baseline's."""
    baseline, trial = trials_of(job)["baseline"], trials_of(job)[text]
    lines = [line for lever in _codes(baseline, trial) for line in lever.added]
    if job == "loader":
        workers = lever_codes({"num_workers": (None, 1)}, context_of(baseline))
        lines += [line for lever in workers for line in lever.added]
    options = LoopOptions(batch_size=_BATCH, window_s=0.1, warmup_steps=3)
    return plain_loop(trial.workload, lines, context_of(trial), options)


_CASES = [(job, text) for job in _JOBS for text in trials_of(job)]


def _losses(label: str, rank: int, directory: Path) -> dict[str, list[float]]:
    """What a rank of scalescope and one of the script compute, step by step."""
    import torch

    job, _, text = label.partition(": ")
    compiled = functools.partial(torch.compile, backend="aot_eager")
    with warnings.catch_warnings(), mock.patch.object(torch, "compile", compiled):
        warnings.simplefilter("ignore")  # of what torch does with a lever; `test_levers.py` looks at them
        return {
            "scalescope": _of_scalescope(trials_of(job)[text], rank, directory),
            "script": _of_script(script_of(job, text), rank, directory),
        }


def _of_scalescope(trial: Trial, rank: int, directory: Path) -> list[float]:
    import torch

    from scalescope.results.ranks import Heartbeats
    from scalescope.worker.process.group import Group
    from scalescope.worker.process.position import Position
    from scalescope.worker.training.assembly import build_feed, build_step, build_workload
    from tests.builders.workers import run_steps

    device, group = torch.device("cpu"), Group(rank=rank, world_size=RANKS, joined=False)
    workload = build_workload(trial, group, device)
    step, feed = build_step(trial, workload, device), build_feed(trial, workload, group, device)
    beats = Path(tempfile.mkdtemp(dir=directory)) / "beats"
    Heartbeats(beats, 1, create=True)
    try:
        done = run_steps(step, feed.batches, _STEPS, Position(beats, 0, 1))
    finally:
        feed.close()
    return [float(loss) for loss in done.losses]


def _of_script(source: str, rank: int, directory: Path) -> list[float]:
    """The script's own functions, in a process whose group is there already."""
    import torch.distributed as dist

    path = Path(tempfile.mkdtemp(dir=directory)) / "plain_script.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    with mock.patch.dict(os.environ, ranks), mock.patch.object(dist, "init_process_group"):
        spec.loader.exec_module(script)
    losses = [float(script.train(1)[-1]) for _ in range(_STEPS)]
    script.batches.close()
    return losses


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Real ranks, started once for all cases."""
    labels = [f"{job}: {text}" for job, text in _CASES]
    return run_cases(_losses, labels, tmp_path_factory.mktemp("lines"))


@pytest.mark.parametrize(("job", "text"), _CASES)
def test_a_script_with_the_lines_computes_what_the_ranks_compute(
    job: str, text: str, outcomes: Outcomes
) -> None:
    for losses in outcomes.of(f"{job}: {text}"):
        assert all(map(math.isfinite, losses["script"]))
        assert losses["script"] == pytest.approx(losses["scalescope"], rel=1e-5)


def test_the_loss_moves_so_that_a_line_without_effect_on_gradients_would_show(outcomes: Outcomes) -> None:
    losses = outcomes.of("plain: baseline")[0]["script"]
    assert abs(losses[-1] / losses[0] - 1.0) > 0.01


def test_the_levers_of_a_cpu_are_among_the_cases() -> None:
    settings = {text.split()[0] for _, text in _CASES}
    assert settings >= {
        *("precision", "compile", "jit", "memory_format", "fused_optimizer", "threads_per_rank"),
        *("num_workers", "persistent_workers", "prefetch_factor"),
        *("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "broadcast_buffers", "comm_hook"),
    }


def test_a_script_runs_by_itself(tmp_path: Path) -> None:
    trial = trials_of("plain")["precision bf16"].replace(world_size=1, strategy="single")
    changes = {"precision": ("fp32", "bf16"), "num_workers": (None, 1)}
    lines = [line for lever in lever_codes(changes, context_of(trial)) for line in lever.added]
    options = LoopOptions(batch_size=_BATCH, window_s=0.1, warmup_steps=3)
    script = tmp_path / "script.py"
    script.write_text(plain_loop(trial.workload, lines, context_of(trial), options))
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**clean_environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)
    assert printed["samples_per_s"] > 0 and math.isfinite(printed["loss"])
