"""Healthy runs to be mutated: stored ones, and ones that a simulated launcher makes."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

from mutating.calls import MODEL
from scalescope.cli import app, measuring
from scalescope.launch.fake import FakeLauncher
from scalescope.results.run_folder import find_runs
from scalescope.studies.runs import resuming

_SMALL = ("--steps-per-epoch=8", "--warmup-steps=3", "--device=cpu")
_COMMANDS = {
    "train": ("train", *_SMALL, "--batch-size=4,8", "--repeats=2"),
    "scale": ("scale", *_SMALL, "--world-size=1,2", "--batch-size=8", "--repeats=3"),
    "tune": ("tune", *_SMALL, "--world-size=2", "--levers=bucket_cap_mb,precision", "--repeats=3"),
    "comm": ("comm", "--world-size=2", "--max-bytes=1M", "--repeats=2"),
    "memory": ("memory", "--device=cpu", "--batch-size=2,4"),
}


def make_sources(root: Path) -> list[Path]:
    """One run of each verb, with one launch more to make, so that there is something to resume."""
    resuming.machine_here = dict
    root.mkdir(parents=True)
    runs = []
    for name, words in _COMMANDS.items():
        run = root / name
        _call(*words, "--output-dir", str(run))
        _lose_last_launch(run)
        runs.append(run)
    _call("report", str(runs[0]), "--out", str(root / "report"))  # loads what draws, for all that follow
    return runs


def _call(*words: str) -> None:
    measuring._local_launcher = lambda *_: FakeLauncher(MODEL)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            app.main(list(words))
        except SystemExit as leaving:
            if leaving.code:
                raise RuntimeError(f"{words}: {errors.getvalue()}") from None


def _lose_last_launch(run: Path) -> None:
    """Take the last line away, and with it the record that the run is finished."""
    lines = (run / "trials.jsonl").read_bytes().splitlines(keepends=True)
    if len(lines) > 1:
        (run / "trials.jsonl").write_bytes(b"".join(lines[:-1]))
        record = run / "run.json"
        record.write_text(record.read_text().replace('"why": "finished"', '"why": "interrupted"'))


def runs_below(roots: Sequence[Path]) -> list[Path]:
    """All runs below folders."""
    return [path.resolve() for root in roots for path in find_runs(root)]
