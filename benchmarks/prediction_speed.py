"""How long predictions take: growth with buckets, ranks and micro-batches, and what importing them loads.

    python benchmarks/prediction_speed.py

Limits: 1,024 ranks with 200 buckets within 1 s, 100,000 ranks on two levels within 2 s, and no torch. Exits
with 1 where one of them is broken.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from scalescope.analysis.prediction.collective_times import network_named
from scalescope.analysis.prediction.profiles import Gradient, RankProfile, Unit
from scalescope.analysis.prediction.setup import RankLayout, Setup
from scalescope.analysis.prediction.simulation import simulate

MIB = 1 << 20
LAYOUT = RankLayout(ranks_per_node=8, cards_per_node=8)
NETWORK = "nvlink4+400gbe"
REPEATS = 5


def profile_of(buckets: int, units: int = 32) -> RankProfile:
    """A step of 200 ms with as many gradients of 1 MiB, one for each bucket."""
    backward_s = 0.12
    gradients = tuple(
        Gradient(size_bytes=MIB, ready_s=backward_s * (number + 1) / buckets) for number in range(buckets)
    )
    return RankProfile(
        samples=32,
        input_s=0.0,
        forward_s=0.06,
        backward_s=backward_s,
        optimizer_s=0.02,
        gradients=gradients,
        units=tuple(
            Unit(
                name=f"block {number}",
                parameter_bytes=buckets * MIB // units,
                forward_s=0.06 / units,
                backward_s=backward_s / units,
                activation_bytes=MIB,
            )
            for number in range(units)
        ),
    )


def seconds(call: Callable[[], object]) -> float:
    """The shortest of a few."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def simulated(buckets: int, setup: Setup) -> float:
    """Seconds that a prediction takes, reading the data of the network included."""
    profile = profile_of(buckets)
    return seconds(lambda: simulate(profile, network_named(NETWORK), setup))


def setup_of(ranks: int, strategy: str = "ddp", backend: str = "nccl", micro_batches: int = 1) -> Setup:
    """One bucket for each gradient."""
    return Setup(
        world_size=ranks,
        strategy=strategy,
        backend=backend,
        layout=LAYOUT,
        bucket_cap_mb=1,
        micro_batches=micro_batches,
    )


def print_table(title: str, columns: Sequence[int], rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Times in ms."""
    print(f"\n{title}")
    print(" " * 24 + "".join(f"{column:>12,}" for column in columns))
    for name, times in rows:
        print(f"{name:24}" + "".join(f"{time_s * 1e3:9.2f} ms" for time_s in times))


def growth() -> None:
    """With buckets, ranks and micro-batches."""
    counts = (25, 50, 100, 200, 400, 800)
    rows = [
        (f"ddp, {backend}", [simulated(count, setup_of(1024, backend=backend)) for count in counts])
        for backend in ("nccl", "gloo")
    ]
    rows.append(("zero1, nccl", [simulated(count, setup_of(1024, "zero1")) for count in counts]))
    print_table("Buckets, on 1,024 ranks", counts, rows)
    ranks = (2, 16, 128, 1024, 8192, 100_000)
    rows = [
        (strategy, [simulated(200, setup_of(count, strategy)) for count in ranks])
        for strategy in ("ddp", "zero1", "fsdp")
    ]
    print_table("Ranks, with 200 buckets or 32 units", ranks, rows)
    parts = (8, 16, 32, 64, 128, 256)
    stages = 8
    rows = [
        ("pipeline, 1f1b", [simulated(200, setup_of(stages, "pipeline", "nccl", count)) for count in parts])
    ]
    print_table(f"Micro-batches, in {stages} stages", parts, rows)


def imports_torch() -> bool:
    """In a new interpreter."""
    modules = "scalescope.analysis.prediction.simulation, scalescope.analysis.prediction.collective_times"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return completed.stdout.strip() == "True"


def main() -> None:
    """Print the tables, then the limits."""
    growth()
    limits = [
        ("1,024 ranks, 200 buckets", simulated(200, setup_of(1024)), 1.0),
        ("100,000 ranks on two levels, 200 buckets", simulated(200, setup_of(100_000)), 2.0),
    ]
    print()
    for name, time_s, limit_s in limits:
        print(f"{name}: {time_s * 1e3:.2f} ms (limit {limit_s:.0f} s)")
    loads_torch = imports_torch()
    print(f"importing the predictor imports torch: {'yes' if loads_torch else 'no'}")
    sys.exit(int(loads_torch or any(time_s > limit_s for _, time_s, limit_s in limits)))


if __name__ == "__main__":
    main()
