"""Ordinary scripts of many shapes: is the waiting for input that `train` claims what removing it gains?

    python benchmarks/script_shapes.py [--shapes stream,pairs] [--out FOLDER]

Every shape gets its batches in another way; LOAD_MS is what a sample costs. The truth is measured without
scalescope: the script with and without that cost, in turns, by a hook of PyTorch's optimizers. Steps sleep
instead of computing, so that other work on the machine does not matter. `train -- python SHAPE.py` measures
the script as it is. A claim is right within 5 % of the step. Where a script has no DataLoader, or works on
its batches itself, input cannot be removed: the cost must be in `rest`, and input not claimed.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PRELUDE = """
import itertools, os, queue, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
LOAD_S = float(os.environ.get("LOAD_MS", "{load_ms}")) / 1000
WIDTH, BATCH = 64, 16

class Pace(torch.autograd.Function):
    # other work on the machine does not slow it: 5 ms forward, 10 ms backward
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.005)
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.01)
        return gradient

class Paced(nn.Module):
    def forward(self, x):
        return Pace.apply(x)

if "WITHOUT_INPUT" in os.environ:
    LOAD_S = 0.0

    class DataLoader(DataLoader):
        ready = {}  # by the size of the data set

        def __iter__(self):
            endless = isinstance(self.dataset, IterableDataset)
            batches = self.ready.setdefault(0 if endless else len(self.dataset), [])
            if not batches:
                batches += itertools.islice(super().__iter__(), 20)
            for number in itertools.count() if endless else range(len(self)):
                batch = batches[number % len(batches)]
                yield dict(batch) if isinstance(batch, dict) else batch

class Samples(Dataset):
    def __init__(self, size=320):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, number):
        time.sleep(LOAD_S)
        return torch.full((WIDTH,), number / self.size), torch.ones(1)

class Stream(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(LOAD_S)
            yield torch.randn(WIDTH), torch.ones(1)

def perceptron():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), Paced(), nn.Linear(WIDTH, 1))

model = perceptron()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
cost = nn.functional.mse_loss

def step(x, y):
    optimizer.zero_grad()
    cost(model(x), y).backward()
    optimizer.step()
"""

# Of each shape: milliseconds per sample, where its cost belongs, and its loop.
SHAPES: dict[str, tuple[float, str, str]] = {
    "healthy": (
        0.0,
        "input",
        """
data = TensorDataset(torch.randn(640, WIDTH), torch.ones(640, 1))
loader = DataLoader(data, batch_size=BATCH, shuffle=True)
while True:
    for x, y in loader:
        step(x, y)
""",
    ),
    "stream": (
        1.0,
        "input",
        """
for x, y in DataLoader(Stream(), batch_size=BATCH):
    step(x, y)
""",
    ),
    "stream_workers": (
        5.0,
        "input",
        """
for x, y in DataLoader(Stream(), batch_size=BATCH, num_workers=2):
    step(x, y)
""",
    ),
    "by_hand": (
        1.0,
        "rest",
        """
data, ready = Samples(), {}
while True:
    for first in range(0, 320, BATCH):
        if first not in ready or LOAD_S:
            samples = [data[first + number] for number in range(BATCH)]
            ready[first] = [torch.stack(column) for column in zip(*samples)]
        step(*ready[first])
""",
    ),
    "collate": (
        0.0,
        "input",
        """
def padded(samples):
    time.sleep(float(os.environ.get("LOAD_MS", "1.5")) / 1000 * len(samples))
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.stack([y for _, y in samples])}

loader = DataLoader(Samples(), batch_size=BATCH, collate_fn=padded)
while True:
    for batch in loader:
        step(batch.pop("x"), batch.pop("y"))
""",
    ),
    "pairs": (
        0.6,
        "input",
        """
one, other = Samples(), Samples()
while True:
    for (x, _), (_, y) in zip(DataLoader(one, batch_size=BATCH), DataLoader(other, batch_size=BATCH)):
        step(x, y)
""",
    ),
    "accumulation": (
        1.0,
        "input",
        """
while True:
    for number, (x, y) in enumerate(DataLoader(Samples(), batch_size=BATCH)):
        (cost(model(x), y) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
    ),
    "cycle": (
        2.0,
        "input",
        """
for x, y in itertools.cycle(DataLoader(Samples(160), batch_size=BATCH)):
    step(x, y)
""",
    ),
    "thread": (
        2.5,
        "input",
        """
ready = queue.Queue(2)

def fill():
    data = Samples()
    while True:
        for batch in DataLoader(data, batch_size=BATCH):
            ready.put(batch)

threading.Thread(target=fill, daemon=True).start()
while True:
    step(*ready.get())
""",
    ),
    "short_epochs": (
        2.0,
        "input",
        """
while True:
    for x, y in DataLoader(Samples(96), batch_size=BATCH, num_workers=2 if LOAD_S else 0):
        step(x, y)
""",
    ),
    "remade": (
        1.0,
        "input",
        """
for epoch in itertools.count():
    for x, y in DataLoader(Samples(160), batch_size=BATCH, shuffle=True):
        step(x, y)
""",
    ),
    "critic": (
        0.5,
        "input",
        """
critic = perceptron()
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
loader = DataLoader(Samples(1600), batch_size=BATCH)
while True:
    for number, (x, y) in enumerate(loader):
        of_critic.zero_grad()
        cost(critic(x), y).backward()
        of_critic.step()
        if number % 5 == 4:
            step(x, y)
""",
    ),
    "lengths": (
        1.0,
        "input",
        """
def cut(samples):
    size = 4 + int(samples[0][0][0] * 12)
    return torch.stack([x for x, _ in samples[:size]]), torch.stack([y for _, y in samples[:size]])

while True:
    for x, y in DataLoader(Samples(), batch_size=BATCH, collate_fn=cut):
        step(x, y)
""",
    ),
    "evaluation": (
        1.0,
        "input",
        """
held_out = DataLoader(TensorDataset(torch.randn(320, WIDTH), torch.ones(320, 1)), batch_size=BATCH)
loader, number = DataLoader(Samples(), batch_size=BATCH), 0
while True:
    for x, y in loader:
        step(x, y)
        number += 1
        if number % 20 == 0:
            model.eval()
            with torch.no_grad():
                sum(cost(model(x), y).item() for x, y in held_out)
            model.train()
""",
    ),
    "closure": (
        1.0,
        "input",
        """
optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=2, history_size=2)
while True:
    for x, y in DataLoader(Samples(), batch_size=BATCH):
        def closure():
            optimizer.zero_grad()
            loss = cost(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
""",
    ),
    "transformed": (
        1.0,
        "rest",
        """
loader = DataLoader(TensorDataset(torch.randn(640, WIDTH), torch.ones(640, 1)), batch_size=BATCH)
while True:
    for x, y in loader:
        time.sleep(LOAD_S * len(x))
        step(x + 0.1 * torch.randn_like(x), y)
""",
    ),
    "endless": (
        1.0,
        "input",
        """
loader = DataLoader(Samples(160), batch_size=BATCH, shuffle=True)
batches = iter(loader)
while True:
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    step(x, y)
""",
    ),
    "next_before_step": (
        1.0,
        "input",
        """
loader = DataLoader(Samples(1600), batch_size=BATCH)
while True:
    batches = iter(loader)
    following = next(batches)
    while following is not None:
        x, y = following
        loss = cost(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        following = next(batches, None)
        optimizer.step()
""",
    ),
    "hidden": (
        0.5,
        "input",
        """
while True:
    for x, y in DataLoader(Samples(1600), batch_size=BATCH, num_workers=1):
        step(x, y)
""",
    ),
    "partly": (
        3.0,
        "input",
        """
loader = DataLoader(Samples(1600), batch_size=BATCH, num_workers=1, persistent_workers=True)
while True:
    for x, y in loader:
        step(x, y)
""",
    ),
}
_BLOCKS = {"critic": 24, "closure": 5}  # optimizer steps that hold all kinds of steps; of others 20
_WITHOUT = {"WITHOUT_INPUT": "1", "LOAD_MS": "0"}
_NEAR = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--out", type=Path, default=Path("build/script_shapes"))
    parser.add_argument("--time", help=argparse.SUPPRESS)  # a script, in a process of its own
    options = parser.parse_args(argv)
    if options.time:
        return time_alone(Path(options.time))
    right = 0
    names = options.shapes.split(",")
    for name in names:
        case = score(name, options.out.resolve())
        right += case["right"]
        print(json.dumps(case), flush=True)
    print(f"{right} of {len(names)} within {_NEAR:.0%} of the step")
    return 0


def score(name: str, out: Path) -> dict[str, Any]:
    """What is claimed of one shape, beside the truth."""
    load_ms, belongs, loop = SHAPES[name]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"{name}.py"
    script.write_text(_PRELUDE.replace("{load_ms}", str(load_ms)) + loop)
    given, without = zip(*((step_s(script, {}), step_s(script, _WITHOUT)) for _ in range(3)), strict=True)
    truth = 1.0 - min(without) / min(given)  # both sleep: what else there is only adds to them
    run = folder / f"run-{time.time():.0f}"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "scalescope", "train", "--device=cpu", "--repeats=2", "--window=2s"),
            *("--no-repeat-disturbed", f"--output-dir={run}", "--", sys.executable, str(script)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "output.txt").write_text(ended.stdout + ended.stderr)
    claimed, parts, findings = claims(run)
    if belongs == "input":
        right = abs((claimed or 0.0) - truth) <= _NEAR
    else:
        right = (claimed or 0.0) <= _NEAR and abs(parts.get("rest", 0.0) - truth) <= _NEAR
    return {
        "shape": name,
        "truth": round(truth, 3),
        "step_ms": round(min(given) * 1e3, 1),
        "claimed": None if claimed is None else round(claimed, 3),
        "parts": {part: round(share, 3) for part, share in parts.items()},
        "findings": findings,
        "code": ended.returncode,
        "right": bool(right),
    }


def claims(run: Path) -> tuple[float | None, dict[str, float], list[str]]:
    """The share of input, all shares, and the findings of a run; nothing where it has none."""
    try:
        results = json.loads((run / "results.json").read_text())
        waterfall = results["results"]["training"][0]["step_waterfall"]
    except (OSError, LookupError, ValueError):
        return None, {}, []
    shares = {term["name"]: term["time_s"] / waterfall["step_time_s"] for term in waterfall["terms"]}
    findings = [
        f"{finding['rule']} {finding['cost_s'] or 0.0:.4f}" for finding in results["results"]["findings"]
    ]
    return shares.get("input"), shares, findings


def step_s(script: Path, variables: Mapping[str, str]) -> float:
    """Seconds of a step of the script alone: the mean of the calmest twenty steps or so."""
    environment = {**os.environ, **variables}
    ended = subprocess.run(
        [sys.executable, __file__, "--time", str(script)], env=environment, capture_output=True, text=True
    )
    return float(ended.stdout.split()[-1])


def time_alone(script: Path) -> int:
    """Run a script and print the mean time of its optimizer steps in the calmest of some blocks."""
    import runpy

    from torch.optim.optimizer import register_optimizer_step_post_hook

    block = _BLOCKS.get(script.stem, 20)
    ends: list[float] = []

    def note(*_: Any) -> None:
        ends.append(time.perf_counter())
        if len(ends) == 5 * block + 1:
            edges = ends[block::block]  # the first block is warm-up
            print(min(later - first for first, later in itertools.pairwise(edges)) / block, flush=True)
            os._exit(0)

    register_optimizer_step_post_hook(note)
    runpy.run_path(str(script), run_name="__main__")
    return 1


if __name__ == "__main__":
    sys.exit(main())
