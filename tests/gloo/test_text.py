"""Training on texts end to end: a tiny corpus through the command line, on real ranks."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

SMALL = [
    "--device=cpu",
    "--workload=transformer",
    "--data=ag_news",
    "--d-model=16",
    "--n-heads=2",
    "--num-layers=1",
    "--dim-feedforward=16",
    "--max-seq-len=12",
    "--vocab-size=40",
    "--global-batch-size=8",
    "--optimizer=adamw",
    "--lr=0.01",
    "--warmup-steps=3",
    "--steps-per-epoch=all",
]
_TOPICS = ["war and peace talks", "team wins the match", "shares fall on profit", "new chip for phones"]


@pytest.fixture
def corpus(run_here: RunsHere) -> Iterator[Path]:
    """A corpus of 64 + 16 easy texts in four classes, which runs find below `data`."""
    folder = run_here.directory / "data" / "ag_news_csv"
    folder.mkdir(parents=True)
    for name, count in (("train", 64), ("test", 16)):
        rows = [f'"{n % 4 + 1}","{_TOPICS[n % 4]}","story ""{n}"" of the day"' for n in range(count)]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    yield folder
    shutil.rmtree(folder.parent)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def run_with(run_here: RunsHere, cache: Path, *arguments: str) -> FinishedRun:
    return run_here("train", *SMALL, "--data-dir=data", *arguments, XDG_CACHE_HOME=str(cache))


def vocabulary(cache: Path) -> bytes:
    (file,) = (cache / "scalescope").glob("vocabulary-*.json")
    return file.read_bytes()


def trained(run: FinishedRun) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    (row,) = run.summary["results"]["training"]
    return dict(row)


@pytest.mark.usefixtures("corpus")
def test_two_ranks_learn_an_easy_corpus(run_here: RunsHere, cache: Path) -> None:
    run = run_with(run_here, cache, "--epochs=3", "--eval", "--world-size=2")
    entry = trained(run)
    assert [epoch["epoch"] for epoch in entry["epochs"]] == [1, 2, 3]
    assert entry["epochs"][-1]["validation_accuracy"] == 1.0
    assert entry["tokens_per_s"] == pytest.approx(12 * entry["samples_per_s"])
    (result,) = run.results
    first, second = (rank["samples"] for rank in result["ranks"])
    assert first["validation_accuracy"] == second["validation_accuracy"]
    assert len(first["epoch_time_s"]) == len(first["evaluation_time_s"]) == 3
    assert [rank["counters"]["epoch_steps"] for rank in result["ranks"]] == [8, 8]
    assert "1.000" in run.stdout
    assert "tokens/s" in run.stdout
    words = json.loads(vocabulary(cache))
    assert words[:4] == ["the", "day", "of", "story"]
    assert len(words) == 38


@pytest.mark.usefixtures("corpus")
def test_a_vocabulary_is_kept_between_runs(run_here: RunsHere, cache: Path) -> None:
    trained(run_with(run_here, cache, "--world-size=2"))
    kept = vocabulary(cache)
    (file,) = (cache / "scalescope").glob("vocabulary-*.json")
    os.utime(file, (time.time() - 1000,) * 2)
    before = file.stat().st_mtime
    trained(run_with(run_here, cache))
    assert (vocabulary(cache), file.stat().st_mtime) == (kept, before)


@pytest.mark.usefixtures("corpus")
def test_next_tokens_of_texts_with_loader_processes(run_here: RunsHere, cache: Path) -> None:
    loader = ["--num-workers=1", "--persistent-workers"]
    entry = trained(run_with(run_here, cache, *loader, "--task=next_token", "--eval"))
    assert 0.0 < entry["epochs"][0]["validation_accuracy"] <= 1.0
    assert run_here.leftovers() == []


def test_a_broken_row_is_named_in_one_line(run_here: RunsHere, corpus: Path, cache: Path) -> None:
    with (corpus / "train.csv").open("a") as file:
        file.write('"7","title","text"\n')
    run = run_with(run_here, cache)
    assert run.returncode == 2
    assert "data/ag_news_csv/train.csv:65: " in run.stderr


def test_missing_files_are_named_before_anything_starts(
    run_here: RunsHere, corpus: Path, cache: Path
) -> None:
    (corpus / "train.csv").unlink()
    run = run_with(run_here, cache)
    assert run.returncode == 2
    assert "train.csv" in run.stderr
    assert not run.folder.exists()
