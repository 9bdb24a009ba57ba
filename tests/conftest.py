"""Shared by all tests: the command line as a person calls it, and what required parts mean."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

# Small and quick: for tests that look at behaviour, not at speed.
TINY = [
    "--device=cpu",
    "--input-dim=16",
    "--hidden-dim=16",
    "--num-layers=2",
    "--output-dim=4",
    "--batch-size=4",
    "--steps-per-epoch=8",
    "--warmup-steps=3",
]


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without anything that would make us a rank or colour the output."""
    unwanted = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SCALESCOPE_FAULT")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, **extra}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `scalescope` in an empty directory; returns the finished process."""

    def run(*arguments: str, timeout: float = 120, **extra: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "scalescope", *arguments],
            cwd=tmp_path,
            env=clean_environment(**extra),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs a GPU skips with the reason where there is none, unless it is required."""
    required = os.environ.get("SCALESCOPE_REQUIRE", "").split(",")
    needed = [item for item in items if item.get_closest_marker("gpu")]
    if not needed or "gpu" in required:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needed:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
