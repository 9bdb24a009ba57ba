"""A user's model that cannot fit is refused in the ranks, before it takes memory."""

from pathlib import Path

import pytest

from tests.conftest import Cli

pytestmark = pytest.mark.gloo
HUGE = """
import torch
from torch import nn


def build():
    model = nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(1000)))
    return model, torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1)), nn.functional.mse_loss
"""


def test_a_huge_model_of_a_user_is_refused_with_its_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "huge.py").write_text(HUGE)
    done = cli("train", "--workload=huge.py:build", "--device=cpu", "--output-dir=D", "--world-size=2")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "workload huge.py:build: line 7: ModelTooLarge: the model has at least 37253" in done.stderr
    assert "--allow-oom" in done.stderr


@pytest.mark.parametrize("words", [["--batch-size=2000000000"], ["--hidden-dim=1000000"]])
def test_what_a_card_excludes_is_refused_without_a_run(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    done = cli("scale", "--device=cpu", *words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "needs at least" in done.stderr and "--allow-oom" in done.stderr
    assert list(tmp_path.iterdir()) == []
