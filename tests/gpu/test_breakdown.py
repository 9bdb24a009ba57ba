"""What a step on a GPU consists of: lines that wait are located, parts add up, and waits cost time."""

import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.diagnose.step_facts import StepFacts, step_facts_of
from scalescope.experiment.explanations import records_breakdown
from scalescope.results.run import load_run
from scalescope.results.traces import step_parts
from tests.conftest import Cli
from tests.gpu.recorded_run import recording_of, train_in

pytestmark = pytest.mark.gpu

WAITS_PER_STEP = 6
WAITING_MODEL = f'''"""A model whose layers read a value back from the GPU."""

import torch
from torch import nn


class Waiting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        x = self.linear(x)
        largest = x.max().item()  # waits
        return x / max(largest, 1.0)


def build():
    layers = [Waiting() for _ in range({WAITS_PER_STEP})]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    samples = [(torch.randn(256), number % 10) for number in range(256)]
    return model, samples, nn.functional.cross_entropy
'''
JOB = ["--workload=waiting.py:build", "--batch-size=32", "--window=1s", "--device=cuda", "--output-dir=D"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the model that waits."""
    home = tmp_path_factory.mktemp("waiting")
    (home / "waiting.py").write_text(WAITING_MODEL)
    return train_in(home, *JOB)


def facts_of(folder: Path) -> StepFacts:
    (facts,) = step_facts_of(load_run(folder))
    return facts


def test_a_line_that_waits_is_located_and_its_cost_is_known(folder: Path) -> None:
    recording = recording_of(folder)
    line = next(n for n, text in enumerate(WAITING_MODEL.splitlines(), 1) if "# waits" in text)
    (site,) = [site for site in recording.syncs if site.file.endswith("waiting.py") and site.line == line]
    assert site.per_step == pytest.approx(WAITS_PER_STEP)
    assert site.function == "forward"
    assert "x.max().item()" in site.code
    assert recording.parts[step_parts.IDLE_SYNC] > 0.0
    assert 0.0 < recording.wait_cost_s(recording.step_s) <= recording.idle_s


def test_parts_of_recorded_steps_add_up_to_them(folder: Path) -> None:
    (result,) = [result for result in load_run(folder).results if records_breakdown(result.trial)]
    samples = result.ranks[0].samples
    steps_s = samples["parts/step_s"]
    assert len(steps_s) >= 3
    for number, step_s in enumerate(steps_s):
        together_s = sum(samples[f"parts/{name}"][number] for name in step_parts.PARTS)
        assert together_s == pytest.approx(step_s, rel=1e-6)
    recording = recording_of(folder)
    assert recording.parts[step_parts.FORWARD] > 0.0
    assert recording.parts[step_parts.BACKWARD] > 0.0
    assert recording.kernels and recording.optimizer_kernels


def test_a_step_run_again_without_waits_is_not_longer(folder: Path) -> None:
    replays = recording_of(folder).replays
    assert replays
    for replay in replays:
        assert replay.fast_host_s <= replay.without_sync_s * 1.001
        assert replay.without_sync_s <= replay.step_s * 1.001


def test_the_waterfall_adds_up_to_the_measured_step(folder: Path) -> None:
    facts = facts_of(folder)
    assert facts.waterfall is not None
    together_s = sum(term.time_s.value for term in facts.waterfall.terms)
    assert together_s == pytest.approx(facts.step_s, rel=1e-6)
    assert facts.preloaded is not None and facts.without_optimizer is not None


def test_rates_of_bare_products_are_recorded_in_every_format(folder: Path) -> None:
    rates = recording_of(folder).product_flops_per_s
    assert rates is not None and set(rates) == {"fp32", "tf32", "bf16", "fp16"}
    assert all(rate > 0.0 for rate in rates.values())


def test_without_a_breakdown_there_is_one_launch(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING_MODEL)
    done = cli("train", *JOB, "--no-breakdown", within_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (tmp_path / "D" / "trials.jsonl").read_text().splitlines()
    ]
    assert [line["settings"]["benchmark"] for line in lines] == ["train"]
