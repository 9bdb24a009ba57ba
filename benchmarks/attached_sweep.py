"""Whether a sweep inside one torchrun measures the same as separate launches: waiting ranks cost nothing.

    python benchmarks/attached_sweep.py [--blocks 4]

A block is one `torchrun --nproc_per_node=4` that sweeps world sizes 1, 2 and 4, and one torchrun for each of
them, in turns. Prints the ratio of the time per step, sweep over separate, with its interval over blocks.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from scalescope.analysis.statistics import difference_of_means

WORLDS = (1, 2, 4)
# Sleeps instead of computing, so that four ranks do not need four cores; the gradients are real and small.
WORKLOAD = (
    "--device=cpu",
    "--workload=paced",
    "--strategy=ddp",
    "--layers=4",
    "--layer-mb=0.05",
    "--threads-per-rank=1",
    "--pin-cores=no",
    "--steps-per-epoch=60",
)


def step_times(ranks: int, worlds: tuple[int, ...]) -> dict[int, float]:
    """The typical time per step for each world size, measured by one torchrun with `ranks` ranks."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "run"
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={ranks}",
        ]
        sizes = ",".join(map(str, worlds))
        asked = [*WORKLOAD, f"--world-size={sizes}", f"--output-dir={folder}"]
        command = [*torchrun, "-m", "scalescope", "train", *asked]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = json.loads((folder / "results.json").read_text())["results"]["training"]
    return {row["world_size"]: row["step_time_s"]["median"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=4)
    blocks = parser.parse_args().blocks
    sweep: dict[int, list[float]] = {world: [] for world in WORLDS}
    separate: dict[int, list[float]] = {world: [] for world in WORLDS}
    for block in range(blocks):
        for world, step_s in step_times(max(WORLDS), WORLDS).items():
            sweep[world].append(math.log(step_s))
        for world in WORLDS:
            separate[world].append(math.log(step_times(world, (world,))[world]))
        print(f"block {block + 1} of {blocks}", file=sys.stderr)
    for world in WORLDS:
        difference = difference_of_means(sweep[world], separate[world])
        low, high = (math.exp(difference.low or math.nan), math.exp(difference.high or math.nan))
        median_ms = 1e3 * math.exp(sum(separate[world]) / blocks)
        print(
            f"{world} ranks: {median_ms:.2f} ms per step separate, "
            f"sweep / separate {math.exp(difference.value):.4f} [{low:.4f}, {high:.4f}]"
        )


if __name__ == "__main__":
    main()
