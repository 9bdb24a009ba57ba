"""Random short sweeps: arguments of commands whose launches take less than a second."""

import random
import sys
from pathlib import Path

_SMALL = (
    *("--device=cpu", "--input-dim=16", "--hidden-dim=16", "--num-layers=2", "--output-dim=4"),
    *("--warmup-steps=3", "--window=0.1s"),
)
_LIMITS = (
    *("--no-repeat-disturbed", "--stall-timeout=3s", "--init-timeout=20s", "--warmup-timeout=20s"),
    "--teardown-timeout=2s",
)
_COMM = ("--device=cpu", "--collective=all_reduce", "-b", "1K", "-e", "4K", "-n", "3")
_SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def write_script(folder: Path) -> None:
    """The training script that some sweeps measure."""
    (folder / "soaked.py").write_text(_SCRIPT)


def random_sweep(choice: random.Random, folder: Path) -> list[str]:
    """The words after `scalescope` of a sweep that stores its launches in `folder`."""
    batches = ",".join(map(str, sorted(choice.sample(range(1, 200), 12))))
    batch, output = f"--batch-size={batches}", f"--output-dir={folder}"
    kind = choice.choice(("train", "train", "train", "env", "scale", "comm", "link", "link", "command"))
    repeats = f"--repeats={choice.randint(1, 3)}"
    train = ["train", *_SMALL, batch, "--world-size=2", repeats, *_LIMITS, "--no-breakdown", output]
    if kind == "train":
        return train
    if kind == "env":  # every rank is a new interpreter
        return ["train", *_SMALL, "--batch-size=2,3", "--env=SOAKED=1", *_LIMITS, "--no-breakdown", output]
    if kind == "link":
        return [*train, f"--link={choice.choice(('1gbit', '500mbit', '0:1gbit,1:200mbit'))}"]
    if kind == "scale":
        return ["scale", *_SMALL, batch, "--world-size=1,2", repeats, *_LIMITS, "--no-waterfall", output]
    if kind == "comm":
        links = choice.choice(((), ("--link=1gbit",)))
        return ["comm", *_COMM, "--world-size=2", "--repeats=8", *links, *_LIMITS, output]
    limits = (*_LIMITS, "--window=0.1s", "--repeats=3", "--device=cpu", "--world-size=1", "--no-breakdown")
    return ["train", *limits, output, "--", sys.executable, "soaked.py"]


def long_sweep(folder: Path) -> list[str]:
    """A sweep that does not end during a soak."""
    batches = ",".join(map(str, range(1, 301)))
    flags = (f"--batch-size={batches}", "--world-size=2", "--repeats=20", "--no-breakdown", "--yes")
    return ["train", *_SMALL, *flags, *_LIMITS, f"--output-dir={folder}"]
