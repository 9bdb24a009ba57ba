"""Every lever alone on two ranks: it trains to the loss of the baseline, or says why it does not apply.

`torch.compile` is traced and cut at DDP's buckets as in a real run, but by a backend that makes no C++:
the compiler alone takes more than a minute on two cores.
"""

import functools
import math
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.studies.tuning.levers import Levers, find_levers
from tests.gloo.many_cases import RANKS, Outcomes, run_cases
from tests.simulated.launcher import TWO_CORES

pytestmark = pytest.mark.gloo

_STEPS = 6
_TOLERANCES = {"nothing": 1e-6, "rounding": 0.02}
# 16 bits on the wire round a gradient by 0.4 % at most, of a step that moves the loss by a few percent.
_HOOK_TOLERANCE = 1e-3
_JOB = ("accumulation_steps", "batch_size")
# Large enough a rate that a gradient that is wrong, or not exchanged, shows in the loss.
_FLAGS = {"world_size": 2, "device": "cpu", "threads_per_rank": 1, "batch_size": 8, "lr": 0.6}
_MLP = {**_FLAGS, "input_dim": 16, "hidden_dim": 24, "num_layers": 3, "output_dim": 4}
_CNN = {**_FLAGS, "workload": "cnn", "channels": 4, "image_size": 16, "lr": 0.05}
_TRANSFORMER = {
    **_FLAGS,
    "workload": "transformer",
    "d_model": 16,
    "n_heads": 2,
    "num_layers": 2,
    "max_seq_len": 8,
    "vocab_size": 50,
    "lr": 0.3,
}
_JOBS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "mlp": (_MLP, ("all", "jit", "compile", *_JOB)),
    "loader": ({**_MLP, "num_workers": 1}, ("num_workers", "persistent_workers", "prefetch_factor")),
    "adamw": ({**_MLP, "optimizer": "adamw", "lr": 0.03}, ("fused_optimizer", "strategy=zero1")),
    "cnn": (_CNN, ("memory_format", "broadcast_buffers", "cudnn_benchmark")),
    "transformer": (_TRANSFORMER, ("precision", "comm_hook", "compile=default", "attention")),
}


def levers_of(job: str) -> Levers:
    """What `tune` would try on this machine's like without a GPU."""
    settings, asked = _JOBS[job]
    flags = {name: (Given(str(value), f"--{name}"),) for name, value in settings.items()}
    return find_levers(build_experiment("tune", "train", {}, flags, {}), TWO_CORES, asked)


@functools.cache
def trials_of(job: str) -> dict[str, tuple[Trial, str]]:
    """What is trained, by its name, with what it may change."""
    levers = levers_of(job)
    candidates = {
        candidate.text: (candidate.trial, str(candidate.changes)) for candidate in levers.candidates
    }
    return {"baseline": (levers.baseline, "nothing"), **candidates}


# torch warns that nothing is unused, that there are fewer cores, or no instructions for bf16; and dynamo of
# what it does itself.
_WARNED_OF = ("find_unused_parameters", "num_workers", "bf16", "compile")

_CASES = [(job, text, changes) for job in _JOBS for text, (_, changes) in trials_of(job).items()]


def _losses(label: str, rank: int, directory: Path) -> list[float]:
    """The losses of a rank, trained as the benchmark trains."""
    job, _, text = label.partition(": ")
    trial, _ = trials_of(job)[text]
    with warnings.catch_warnings():
        if any(name in text for name in _WARNED_OF):
            warnings.simplefilter("ignore", UserWarning)
        return _trained(trial, rank, directory)


def _trained(trial: Trial, rank: int, directory: Path) -> list[float]:
    import torch

    from scalescope.results.ranks import Heartbeats
    from scalescope.worker.process.group import Group
    from scalescope.worker.process.position import Position
    from scalescope.worker.training.assembly import build_feed, build_step, build_workload
    from tests.builders.workers import run_steps

    compiled = functools.partial(torch.compile, backend="aot_eager")
    device, group = torch.device("cpu"), Group(rank=rank, world_size=RANKS, joined=False)
    with mock.patch.object(torch, "compile", compiled):
        workload = build_workload(trial, group, device)
        step = build_step(trial, workload, device)
    feed = build_feed(trial, workload, group, device)
    beats = Path(tempfile.mkdtemp(dir=directory)) / "beats"
    Heartbeats(beats, 1, create=True)
    try:
        done = run_steps(step, feed.batches, _STEPS, Position(beats, 0, 1))
    finally:
        feed.close()
    return [float(loss) for loss in done.losses]


@dataclass(frozen=True)
class Answers:
    """The losses of both ranks, by job and lever."""

    outcomes: Outcomes

    def losses(self, job: str, text: str) -> list[float]:
        """The loss of every step, the mean over ranks."""
        both = zip(*self.outcomes.of(f"{job}: {text}"), strict=True)
        return [sum(pair) / RANKS for pair in both]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Real ranks, started once for all cases."""
    labels = [f"{job}: {text}" for job, text, _ in _CASES]
    return Answers(run_cases(_losses, labels, tmp_path_factory.mktemp("levers")))


@pytest.mark.parametrize("job", [job for job in _JOBS if job != "loader"])  # its samples never come again
def test_the_baselines_learn_so_that_a_wrong_gradient_would_show(job: str, answers: Answers) -> None:
    losses = answers.losses(job, "baseline")
    moved = max(abs(losses[4] / losses[0] - 1.0), abs(losses[5] / losses[1] - 1.0))  # two batches in turns
    print(f"{job}: the loss of the same batch moved by {moved:.1%} in four steps")
    assert moved > 2 * _TOLERANCES["rounding"]


@pytest.mark.parametrize(("job", "text", "changes"), [case for case in _CASES if case[1] != "baseline"])
def test_a_lever_ends_at_the_loss_its_card_promises(
    job: str, text: str, changes: str, answers: Answers
) -> None:
    losses, expected = answers.losses(job, text), answers.losses(job, "baseline")
    assert len(losses) == _STEPS
    assert all(math.isfinite(loss) for loss in losses)
    if changes == "the job":  # other samples: that it trains is all that can be said
        return
    difference = max(abs(a / b - 1.0) for a, b in zip(losses, expected, strict=True))
    allowed = _HOOK_TOLERANCE if text.startswith("comm_hook") else _TOLERANCES[changes]
    print(f"{job}: {text}: largest difference {difference:.1e}, allowed {allowed:g}")
    assert difference <= allowed


def test_together_they_are_all_levers_there_are() -> None:
    """What is neither trained here nor said not to apply would be forgotten."""
    from scalescope.catalog import cards

    settings = cards.all_settings("train")
    of_commands = {owner.__name__ for owner in cards.command_cards()}  # tests/commands has these
    levers = {
        name: version.lever
        for name, versions in settings.items()
        for version in versions
        if version.lever and version.card not in of_commands
    }
    # Another width or length is another job, and any of them is like the others.
    every = {name for name, lever in levers.items() if lever.changes != "the job" or name in _JOB}
    trained = {text.split()[0] for _, text, _ in _CASES}
    jobs = ("mlp", "cnn", "transformer")
    reasons = {lever.text: lever.reason for job in jobs for lever in levers_of(job).inapplicable}
    left_out = {text.split()[0] for text in reasons}
    assert every <= trained | left_out
    assert all(reasons.values())
    without_gpu = ("pin_memory", "non_blocking", "prefetch_stream", "cudnn_benchmark", "attention")
    assert not trained & set(without_gpu)
    assert all("CUDA GPU" in reasons[name] for name in without_gpu)
    assert reasons["precision tf32"] == "precision tf32 requires a CUDA GPU; bf16 works on the CPU"
