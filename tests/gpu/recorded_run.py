"""A `train` run on a GPU, and the step that it recorded."""

import subprocess
import sys
from pathlib import Path

from scalescope.analysis.recording import StepRecording, recordings
from scalescope.experiment.explanations import records_breakdown
from scalescope.results.run import load_run
from tests.conftest import clean_environment
from tests.speed import patience


def train_in(home: Path, *words: str) -> Path:
    """Run `scalescope train` in a folder; returns the run folder, which the words name D."""
    done = subprocess.run(
        [sys.executable, "-m", "scalescope", "train", *words],
        cwd=home,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=patience(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return home / "D"


def recording_of(folder: Path) -> StepRecording:
    (result,) = [result for result in load_run(folder).results if records_breakdown(result.trial)]
    assert result.status == "ok", result.reason
    (recording,) = recordings(result)
    return recording
