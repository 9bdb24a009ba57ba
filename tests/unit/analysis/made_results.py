"""Trials and results made up for the analysis: every number in them is known."""

from collections.abc import Sequence
from typing import Any

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import Given
from scalescope.launch.fake import TWO_CORES
from scalescope.results.result import RankRecord, Result


def make_trial(
    *, without_communication: bool = False, with_preloaded_input: bool = False, **settings: Any
) -> Trial:
    """A trial with every default resolved, as a request would give it."""
    asked = {"batch_size": 10, "steps_per_epoch": 13, "warmup_steps": 3, "threads_per_rank": 1, **settings}
    if "global_batch_size" in settings:
        del asked["batch_size"]
    flags = {name: (Given(str(value), f"--{name}"),) for name, value in asked.items()}
    experiment = build_experiment("scale", "train", {}, flags, {})
    (trial,) = expand(experiment, TWO_CORES).trials
    return trial.replace(
        without_communication=without_communication, with_preloaded_input=with_preloaded_input
    )


def make_result(
    trial: Trial,
    ranks: Sequence[Sequence[float]],
    *,
    launch: int = 0,
    started_at: str = "2026-01-15T10:30:00+00:00",
    calibration: Sequence[tuple[float | None, float | None]] | None = None,
) -> Result:
    """One launch from the step times of every rank; `calibration` is the matmul rate before and after."""
    rates = calibration or [(None, None)] * len(ranks)
    return Result(
        trial_id=trial.trial_id,
        launch=launch,
        order=launch,
        status="ok",
        settings=dict(trial.settings),
        started_at=started_at,
        duration_s=1.0,
        environment_id="made-up",
        ranks=[
            RankRecord(
                rank=rank,
                host="here",
                device="cpu",
                placement=f"[Rank {rank}]",
                samples={"step_time_s": list(times)},
                counters={"matmul_flops_per_s_before": before, "matmul_flops_per_s_after": after},
            )
            for rank, (times, (before, after)) in enumerate(zip(ranks, rates, strict=True))
        ],
    )


def make_configuration(trial: Trial, *step_times_s: float) -> Configuration:
    """One launch for each step time; all ten steps of all ranks take that long."""
    results = [
        make_result(trial, [[step] * 10] * trial.world_size, launch=launch)
        for launch, step in enumerate(step_times_s)
    ]
    (configuration,) = configurations(results)
    return configuration
