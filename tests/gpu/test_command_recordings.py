"""A training command on a GPU: what its step consists of, and which line of the script waits for the GPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.diagnose.step_facts import step_facts_of
from scalescope.results.run import load_run
from scalescope.results.traces import step_parts
from tests.gpu.recorded_run import recording_of, train_in

pytestmark = pytest.mark.gpu

WAITS_PER_STEP = 12
SCRIPT = f'''"""A training loop that reads many values back from the GPU, at the top level of the script."""

import torch
from torch import nn

layers = [nn.Linear(256, 256) for _ in range({WAITS_PER_STEP})]
model = nn.Sequential(*layers, nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
inputs = torch.randn(32, 256, device="cuda")
targets = torch.randint(0, 10, (32,), device="cuda")
while True:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    for layer in layers:
        largest = layer.weight.grad.abs().max().item()  # waits
        layer.weight.grad.div_(max(largest, 1.0))
    optimizer.step()
    optimizer.zero_grad()
'''
LINE = next(number for number, text in enumerate(SCRIPT.splitlines(), 1) if "# waits" in text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train -- python script.py`."""
    home = tmp_path_factory.mktemp("command")
    (home / "script.py").write_text(SCRIPT)
    flags = ("--device=cuda", "--window=1s", "--output-dir=D")
    return train_in(home, *flags, "--", sys.executable, "script.py")


def test_the_line_of_the_script_that_waits_is_located_and_timed(run: Path) -> None:
    recording = recording_of(run)
    (site,) = [site for site in recording.syncs if site.line == LINE]
    assert Path(site.file).name == "script.py"
    assert site.per_step == pytest.approx(WAITS_PER_STEP)
    assert ".item()" in site.code
    assert site.time_s is not None and site.time_s > 0.0


def test_a_finding_names_the_line_of_the_script(run: Path) -> None:
    findings: list[dict[str, Any]] = json.loads((run / "results.json").read_text())["results"]["findings"]
    (finding,) = [finding for finding in findings if finding["rule"] == "host synchronization"]
    assert f"script.py:{LINE}" in finding["claim"]


def test_the_parts_of_the_step_add_up_and_are_shown(run: Path) -> None:
    recording = recording_of(run)
    for part in (step_parts.FORWARD, step_parts.BACKWARD, step_parts.OPTIMIZER, step_parts.IDLE_SYNC):
        assert recording.parts[part] > 0.0, part
    assert recording.kernels and recording.optimizer_kernels and recording.plain_step_s
    (facts,) = step_facts_of(load_run(run))
    assert facts.waterfall is not None
    assert sum(term.time_s.value for term in facts.waterfall.terms) == pytest.approx(facts.step_s, rel=1e-6)
    (row,) = json.loads((run / "results.json").read_text())["results"]["training"]
    assert row["step_waterfall"]["terms"]


def test_rates_of_bare_products_are_recorded(run: Path) -> None:
    rates = recording_of(run).product_flops_per_s
    assert rates is not None and all(rate > 0.0 for rate in rates.values())
