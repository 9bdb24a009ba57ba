"""Whether `scale` agrees with torchrun by hand on real cores that others use too.

    python benchmarks/busy_cores.py OUT.jsonl [--runs 24] [--rounds 4]

Every run has a load (none, a busy loop, bursts of one, a build) and a job (a command, a function). In each of
its rounds `scale` makes its launches (`--only-launch K`), and then torchrun is started by hand on one and two
ranks, in a random order, with a loop that prints its own samples per second; beside a function one that reads
its samples through a DataLoader). One line of JSON per run: the ratio by hand, which is the median of
its rounds, and the interval of `scale`. A run that is in OUT.jsonl is not made again.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LOADS = ("none", "loop", "bursts", "build")
JOBS = ("command", "function")
_MODEL = """import torch


def build():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10))


def job():
    model = build()
    data = torch.utils.data.TensorDataset(torch.randn(4096, 512), torch.randint(0, 10, (4096,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, data, torch.nn.functional.cross_entropy, optimizer
"""
_TRAIN = """import itertools
import os
import sys
import time

import torch

from model import build, job

world = int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    torch.distributed.init_process_group("gloo")
model = build()
if world > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, labels = torch.randn(256, 512), torch.randint(0, 10, (256,))


def loaded():
    data = job()[1]
    rank = int(os.environ.get("RANK", 0))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=world, rank=rank)
    loader = torch.utils.data.DataLoader(data, batch_size=256, sampler=sampler, drop_last=True)
    while True:
        yield from loader


batches = loaded() if "loader" in sys.argv else itertools.repeat((inputs, labels))


def step():
    inputs, labels = next(batches)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()


seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1e9
for _ in range(5):
    step()
begin, steps = time.perf_counter(), 0
while time.perf_counter() - begin < seconds or steps % 10:
    step()
    steps += 1
    if world > 1 and steps % 10 == 0:  # all ranks stop together
        spent = torch.tensor([time.perf_counter() - begin])
        torch.distributed.all_reduce(spent)
        if spent.item() / world > seconds:
            break
if os.environ.get("RANK", "0") == "0":  # two ranks would write into each other's lines
    print("RATE", 256 * world * steps / (time.perf_counter() - begin), flush=True)
"""
_BUSY = "while True: sum(range(10000))"
_BURSTS = (
    "import time\nwhile True:\n t=time.time()\n while time.time()-t < 6: sum(range(10000))\n time.sleep(9)"
)
_BUILD = (
    "import compileall, sys, pathlib, random, ast\n"
    "files = list(pathlib.Path(sys.argv[1]).rglob('*.py'))\n"
    "while True:\n ast.parse(random.choice(files).read_text(errors='replace'))"
)


@contextlib.contextmanager
def load(kind: str) -> Iterator[None]:
    """Other work on the machine."""
    sources = {"loop": [_BUSY], "bursts": [_BURSTS], "build": [_BUILD, _BUILD]}.get(kind, [])
    library = str(Path(os.__file__).parent)
    others = [subprocess.Popen([sys.executable, "-c", source, library]) for source in sources]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def by_hand(folder: Path, ranks: int, job: str) -> float:
    """Samples per second as the loop itself counts them, over two seconds."""
    command = ["torchrun", "--standalone", f"--nproc-per-node={ranks}", "train.py", "2.0"]
    command += ["loader"] * (job == "function")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    rates = [float(rate) for rate in re.findall(r"RATE ([\d.]+)$", done.stdout, re.MULTILINE)]
    return statistics.fmean(rates)


def one_run(kind: str, job: str, rounds: int, seed: int) -> dict[str, object]:
    """The ratio by hand and by `scale`, from the same rounds."""
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="busy-"))
    (folder / "model.py").write_text(_MODEL)
    (folder / "train.py").write_text(_TRAIN)
    torchrun = ["--", "torchrun", "--standalone", "--nproc-per-node={world_size}", "train.py"]
    what = torchrun if job == "command" else ["--workload=model.py:job", "--batch-size=256"]
    words = [
        *("scale", "--world-size=1,2", "--window=1s", f"--repeats={rounds}", "--no-waterfall"),
        *("--output-dir=run", "--threads-per-rank=1"),
    ]
    if job == "command":
        words = [word for word in words if not word.startswith("--threads")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"} if job == "command" else dict(os.environ)
    began, logs = time.monotonic(), []
    with load(kind):
        for number in range(rounds):
            more = ["--resume"] if number else []
            subprocess.run(
                [sys.executable, "-m", "scalescope", *words, *more, f"--only-launch={number}", *what],
                cwd=folder, env=env, capture_output=True, text=True, timeout=400, check=False,
            )  # fmt: skip
            rates = {ranks: by_hand(folder, ranks, job) for ranks in chance.sample((1, 2), 2)}
            logs.append(math.log(rates[2] / rates[1]))
    from scalescope.analysis.configurations import configurations
    from scalescope.analysis.scaling.rows import scaling_rows
    from scalescope.results.run import load_run

    rows = scaling_rows(configurations(load_run(folder / "run").results))
    row = next((row for row in rows if row.ranks == 2), None)
    return {
        "load": kind, "job": job, "seed": seed, "rounds": rounds, "seconds": round(time.monotonic() - began),
        "by_hand": math.exp(statistics.median(logs)), "hand_rounds": [math.exp(log) for log in logs],
        "scale": None if row is None else row.speedup.value,
        "low": None if row is None else row.speedup.low, "high": None if row is None else row.speedup.high,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    made = given.out.read_text().splitlines() if given.out.is_file() else []
    done = {json.loads(line)["seed"] for line in made}
    for seed in range(given.runs):
        if seed in done:
            continue
        found = one_run(LOADS[seed % 4], JOBS[seed // 4 % 2], given.rounds, seed)
        with given.out.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
