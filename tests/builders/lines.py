"""Records as they stand in trials.jsonl."""

import json
from pathlib import Path
from typing import Any

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result, to_json
from tests.simulated.launcher import TWO_CORES


def made_trial(**asked: object) -> Trial:
    """A trial of `train` as planned for a small machine."""
    flags = {name: (Given(str(value), name),) for name, value in asked.items()}
    (trial,) = expand(build_experiment("train", "train", {}, flags, {}), TWO_CORES).trials
    return trial


TRIAL = made_trial(world_size=1, batch_size=4, device="cpu")


def make_result(**changes: Any) -> Result:
    """A small result that is whole."""
    values: dict[str, Any] = {
        "trial_id": TRIAL.trial_id,
        "launch": 0,
        "order": 0,
        "status": "ok",
        "settings": dict(TRIAL.settings),
        "started_at": "2026-01-15T10:30:00.000+00:00",
        "duration_s": 1.5,
        "environment_id": "here",
        "ranks": [
            RankRecord(
                rank=0,
                host="here",
                device="cpu",
                placement="[Rank 0]",
                samples={"step_time_s": [0.25, 0.5], "loss": [1.0, 0.5]},
                counters={"gradient_bytes": 8, "matmul_flops_per_s_before": 1.5e9, "note": None},
            )
        ],
    }
    return Result(**{**values, **changes})


def line_of(**changes: Any) -> str:
    """A result as one line, without its newline; `changes` are of the plain JSON record."""
    return json.dumps({**to_json(make_result()), **changes})


def write_lines(folder: Path, *lines: str | bytes, end: bytes = b"\n") -> None:
    """trials.jsonl of these lines; `end` closes the last."""
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    (folder / "trials.jsonl").write_bytes(b"\n".join(raw) + end)
