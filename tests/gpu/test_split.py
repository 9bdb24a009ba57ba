"""One GPU split into shares under a private MPS daemon, which must be gone afterwards."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.gpu


def daemons() -> set[int]:
    """Process ids of all MPS daemons and servers."""
    daemon_ids = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].rpartition(b"/")[2].startswith(b"nvidia-cuda-mps"):
            daemon_ids.add(int(path.parent.name))
    return daemon_ids


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = daemons()
    yield
    assert daemons() <= before


def test_nccl_carries_collectives_between_shares(cli: Cli, tmp_path: Path) -> None:
    sizes = ["-b", "1K", "-e", "1M", "-f", "32", "--time-per-size", "0.05s", "--output-dir", "D"]
    done = cli("comm", "--split-gpu", "2", "--world-size", "2", *sizes, within_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^Transport *: (?!unknown)", done.stdout, re.MULTILINE)
    summary = json.loads((tmp_path / "D" / "results.json").read_text())
    rows = [row for rows in summary["results"]["communication"].values() for row in rows]
    assert len(summary["results"]["communication"]) == 8
    assert all(row["wrong"] == 0 for row in rows)


def test_scaling_over_shares_stores_the_split(cli: Cli, tmp_path: Path) -> None:
    small = ["--hidden-dim=512", "--input-dim=512", "--batch-size=64", "--steps-per-epoch=20", "--repeats=1"]
    done = cli("scale", "--split-gpu=2", "--world-size=1,2", *small, "--output-dir=D", within_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "D" / "trials.jsonl").read_text().splitlines()
    assert {json.loads(line)["settings"]["split_gpu"] for line in lines} == {2}


def test_more_ranks_than_shares_are_refused(cli: Cli) -> None:
    refused = cli("scale", "--split-gpu=2", "--world-size=1,4")
    assert refused.returncode == 2
    assert "--split-gpu 2" in refused.stderr and "4" in refused.stderr
