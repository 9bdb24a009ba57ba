"""Profiles of one rank for runs of the fake launcher, whose ranks take no step apart."""

from scalescope.analysis.prediction.profile import Gradient, RankProfile, Unit
from scalescope.analysis.prediction.profiles import MeasuredProfile
from scalescope.results.run import Run

GRADIENTS = 4
GRADIENT_BYTES = 1 << 20


def made_profile(samples: int, step_s: float) -> RankProfile:
    """A step of so long: 30 % forward, 60 % backward, the rest optimizer; gradients follow evenly."""
    backward_s = 0.6 * step_s
    parts = range(1, GRADIENTS + 1)
    return RankProfile(
        samples=samples,
        input_s=0.0,
        forward_s=0.3 * step_s,
        backward_s=backward_s,
        optimizer_s=0.1 * step_s,
        gradients=tuple(
            Gradient(size_bytes=GRADIENT_BYTES, ready_s=backward_s * part / GRADIENTS) for part in parts
        ),
        units=tuple(
            Unit(
                name=f"block {part}",
                parameter_bytes=GRADIENT_BYTES,
                forward_s=0.3 * step_s / GRADIENTS,
                backward_s=backward_s / GRADIENTS,
                activation_bytes=1024 * samples,
            )
            for part in parts
        ),
        launch_spread=0.01,
    )


def made_profiles(run: Run) -> tuple[MeasuredProfile, ...]:
    """What `profiles_of` would read, had the ranks of a fake launcher taken their steps apart."""
    profiles: dict[str, MeasuredProfile] = {}
    for result in run.of_status("ok"):
        trial = result.trial
        if trial.is_training and trial.world_size == 1 and not trial.is_ablation:
            steps = result.ranks[0].samples["step_time_s"]
            profile = made_profile(trial.micro_batch_size, sum(steps) / len(steps))
            known = MeasuredProfile(trial=trial, profile=profile, memory_bytes=64 << 20)
            profiles.setdefault(trial.trial_id, known)
    return tuple(profiles.values())
