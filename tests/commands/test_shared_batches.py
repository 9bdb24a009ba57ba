"""Ranks that share a batch count it once; where nobody can tell, samples are unknown and never wrong."""

import sys
from pathlib import Path

import pytest

from tests.gloo.conftest import Start

pytestmark = [pytest.mark.gloo, pytest.mark.thorough]

_SCRIPT = Path(__file__).parent / "scripts" / "shared_batch.py"
_BATCH = 48


# (how ranks share work, ranks, batches of a step; None: unknown)
@pytest.mark.parametrize(
    ("kind", "ranks", "batches"),
    [
        ("ddp", 2, 2),
        ("ddp_same", 2, 2),
        ("tp", 2, 1),
        ("tp_fsdp2", 4, 2),
        ("tp_by_hand", 4, 2),
        ("fsdp2", 2, 2),
        ("hsdp", 4, 4),
        ("dp_by_hand", 2, 2),
        ("dp_by_hand_same", 2, None),
        ("pipeline", 2, None),
        ("pipeline_by_hand", 2, None),
    ],
)
def test_samples_of_a_step(start: Start, kind: str, ranks: int, batches: int | None) -> None:
    script = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node={world_size}",
        str(_SCRIPT),
        kind,
    ]
    options = ["--oversubscribe"] if ranks > 2 else []
    run = start("train", "--world-size", str(ranks), "--window", "0.5s", *options, "--", *script).finish()
    assert run.returncode == 0, run.stderr
    (training,) = run.summary["results"]["training"]
    assert training["samples_per_step"] == (None if batches is None else batches * _BATCH)
    assert training["replicas"] == batches
    if batches is None:
        assert "--samples-per-step" in run.stdout
    elif batches < ranks:
        assert f"{ranks} ranks, {batches} replica" in run.stdout
