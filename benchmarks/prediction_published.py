"""Predictions of published DDP measurements, from few GPUs to many, with errors and 90 % intervals.

    python benchmarks/prediction_published.py [--reference ../shared/reference]

The folder has two tables. `ddp_v100_published.csv` (ResNets on DGX V100, published with PyTorch): what up to
four GPUs took is fitted, 8 GPUs of one node and 16 of two nodes are predicted; the baseline is "same as at
4". `ddp_v100_pcie_mlp.csv` (an MLP on two V100 with PCIe): predicted from one GPU alone over nominal PCIe,
and from the change from one to two GPUs at one batch size for the other.

Neither table has a profile: forward is taken as a third of a pass, gradients are ready in proportion to the
operations of their layers, and compute that communication overlaps with is slower by 0.19 s per second
(published mean; 0 to 0.40 in the interval). Nor has either a spread between runs: intervals add the package's
default (analysis/run_spread.py), once for the row that is predicted and once for those it is predicted from.
"""

import argparse
import csv
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.prediction.hardware_times import network_named
from scalescope.analysis.prediction.network import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.profile import Gradient, RankProfile
from scalescope.analysis.prediction.setup import RankLayout, Setup
from scalescope.analysis.prediction.simulation import simulate
from scalescope.analysis.prediction.timeline import Fitted
from scalescope.analysis.run_spread import DEFAULT_SPREAD

DEFAULT_REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference"
FITTED_UP_TO = 4
DGX = RankLayout(ranks_per_node=8, cards_per_node=4)
KAPPA, LEAST_KAPPA, MOST_KAPPA = (
    0.19,
    0.0,
    0.40,
)  # seconds of compute lost per second of overlap, as published
Z90 = 1.645
ROUNDING_MS = 0.5  # times of the ResNets are whole milliseconds
FITTED_RATE_ERROR = 0.1  # a rate that one row gives is that of its messages, not of others
BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
MLP_LAYERS = (4096, 4096, 4096, 4096, 2048)
MLP_CAP_MB = 50.0


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters and operations of a part of a model, in the order of the forward pass."""

    parameters: int
    operations: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """A predicted time in ms with its interval."""

    value: float
    low: float
    high: float


class Scaled:
    """Collectives that take so many times as long; a function of their relative error."""

    def __init__(self, times: CollectiveTimes, deviations: float) -> None:
        self._times = times
        self._deviations = deviations

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        time = self._times.time_of(collective, size_bytes, ranks, layout)
        factor = math.exp(self._deviations * math.log1p(time.error))
        return dataclasses.replace(time, time_s=time.time_s * factor)


@dataclass(frozen=True, slots=True)
class Rate:
    """An all-reduce of two ranks that moves so many bytes per second."""

    bytes_per_s: float

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        time_s = 2 * (ranks - 1) / ranks * size_bytes / self.bytes_per_s
        return CollectiveTime(time_s=time_s, error=FITTED_RATE_ERROR)


def resnet_layers(blocks: Sequence[int]) -> Iterator[Layer]:
    """A bottleneck ResNet on images of 224 pixels."""
    yield Layer(3 * 64 * 49 + 2 * 64, 3 * 64 * 49 * 112**2)
    channels, side = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for number in range(count):
            shrinks = stage > 0 and number == 0
            before = side
            side = side // 2 if shrinks else side
            kernels = channels * width, 9 * width * width, width * 4 * width
            skip = channels * 4 * width if number == 0 else 0
            norms = 2 * (2 * width + 4 * width) + (2 * 4 * width if number == 0 else 0)
            operations = kernels[0] * before**2 + (kernels[1] + kernels[2] + skip) * side**2
            yield Layer(sum(kernels) + skip + norms, operations)
            channels = 4 * width
    yield Layer(2048 * 1000 + 1000, 2048 * 1000)


def mlp_layers(widths: Sequence[int]) -> Iterator[Layer]:
    """Linear layers with biases."""
    for before, after in itertools.pairwise(widths):
        yield Layer(before * after + after, before * after)


def profile_of(layers: Sequence[Layer], samples: int, step_ms: float) -> RankProfile:
    """A step of which a third is forward; each layer's gradient is ready when its share has been computed."""
    step_s = step_ms * 1e-3
    backward_s, total, done = step_s * 2 / 3, sum(layer.operations for layer in layers), 0.0
    gradients = []
    for layer in reversed(layers):
        done += layer.operations
        gradients.append(Gradient(size_bytes=4 * layer.parameters, ready_s=backward_s * done / total))
    return RankProfile(
        samples=samples,
        input_s=0.0,
        forward_s=step_s / 3,
        backward_s=backward_s,
        optimizer_s=0.0,
        gradients=tuple(gradients),
    )


def step_ms(profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted) -> float:
    """The simulated step."""
    return simulate(profile, times, setup, fitted).step_s * 1e3


def with_interval(predict: Callable[[CollectiveTimes, float], float], times: CollectiveTimes) -> Predicted:
    """Network, slowdown by overlap and spread between runs do not depend on each other: squares add up."""
    value = predict(times, KAPPA)
    runs = Z90 * math.sqrt(DEFAULT_SPREAD.of_a_difference[0]) * value
    low_parts = value - predict(Scaled(times, -Z90), KAPPA), value - predict(times, LEAST_KAPPA)
    high_parts = predict(Scaled(times, Z90), KAPPA) - value, predict(times, MOST_KAPPA) - value
    return Predicted(value, value - math.hypot(*low_parts, runs), value + math.hypot(*high_parts, runs))


def predicted_resnet(rows: Sequence[dict[str, str]], layers: Sequence[Layer], gpus: int) -> Predicted:
    """From one GPU's step and what two and four GPUs took beyond their exposed communication."""
    measured = {int(row["gpus"]): float(row["step_time_p50_ms"]) for row in rows if row["ddp"] == "1"}
    few = [count for count in measured if 1 < count <= FITTED_UP_TO]
    profile = profile_of(layers, int(rows[0]["batch_per_gpu"]), measured[1])

    def contentions(times: CollectiveTimes, kappa: float) -> list[float]:
        """What compute takes longer on more GPUs; the same for two and four if the model is right."""
        fitted = Fitted(overlap_slowdown=kappa)
        simulated = [step_ms(profile, times, setup_of(count), fitted) for count in few]
        return [
            1.0 + (measured[count] - step) / measured[1] for count, step in zip(few, simulated, strict=True)
        ]

    def predict(times: CollectiveTimes, kappa: float) -> float:
        contention = sum(contentions(times, kappa)) / len(few)
        fitted = Fitted(overlap_slowdown=kappa, contention={gpus: contention})
        return step_ms(profile, times, setup_of(gpus), fitted)

    times = network_named("nvlink2+edr")
    ranges = with_interval(predict, times)
    spread = contentions(times, KAPPA)
    spread_ms = (max(spread) - min(spread)) * measured[1] + ROUNDING_MS
    doublings = math.log2(gpus / FITTED_UP_TO)
    margin_ms = Z90 * spread_ms * math.sqrt(doublings)  # it wandered by as much from two to four
    return Predicted(
        ranges.value,
        ranges.value - math.hypot(ranges.value - ranges.low, margin_ms),
        ranges.value + math.hypot(ranges.high - ranges.value, margin_ms),
    )


def setup_of(gpus: int) -> Setup:
    """DDP on a DGX, or on two."""
    return Setup(world_size=gpus, layout=DGX)


def print_resnets(path: Path) -> None:
    """Both models at 8 and 16 GPUs, beside the baseline."""
    table = rows_of(path)
    print(f"{path.name}: fitted on up to {FITTED_UP_TO} GPUs (nvlink2+edr, 8 GPUs and 4 cards per node)\n")
    print("model       GPUs  measured  predicted  error    90 % interval       inside  same as at 4  error")
    errors: list[float] = []
    baseline: list[float] = []
    for model, blocks in BLOCKS.items():
        rows = [row for row in table if row["model"] == model]
        layers = tuple(resnet_layers(blocks))
        assert sum(layer.parameters for layer in layers) == int(rows[0]["parameters"])
        measured = {int(row["gpus"]): float(row["step_time_p50_ms"]) for row in rows if row["ddp"] == "1"}
        for gpus in sorted(count for count in measured if count > FITTED_UP_TO):
            answer = predicted_resnet(rows, layers, gpus)
            same = measured[FITTED_UP_TO]
            errors.append(answer.value / measured[gpus] - 1.0)
            baseline.append(same / measured[gpus] - 1.0)
            columns = row_of(measured[gpus], answer)
            print(f"{model:10}  {gpus:4}  {columns}  {same:10.1f} ms  {baseline[-1]:+6.1%}")
    print(
        f"\nmean absolute error: {mean_absolute(errors):.1%}; same as at 4: {mean_absolute(baseline):.1%}\n"
    )


def print_mlp(path: Path) -> None:
    """Two GPUs, from one GPU alone and from the other batch size."""
    measured = {
        (int(row["gpus"]), int(row["batch_per_gpu"])): float(row["step_time_ms"]) for row in rows_of(path)
    }
    layers = tuple(mlp_layers(MLP_LAYERS))
    setup = Setup(world_size=2, bucket_cap_mb=MLP_CAP_MB)
    batches = sorted({batch for _, batch in measured})
    profiles = {batch: profile_of(layers, batch, measured[1, batch]) for batch in batches}
    print(f"{path.name}: two V100, bucket cap {MLP_CAP_MB:.0f} MB\n")
    print("predicted from              batch  measured  predicted  error    90 % interval       inside")
    for batch in batches:
        answer = with_interval(predictor(profiles[batch], setup), network_named("pcie3"))
        print(f"1 GPU, nominal PCIe 3      {batch:6}  {row_of(measured[2, batch], answer)}")
    for batch, other in (batches, batches[::-1]):
        rate = fitted_rate(profiles[other], setup, measured[2, other])
        answer = with_interval(predictor(profiles[batch], setup), Rate(rate))
        source = f"1 and 2 GPUs at {other}"
        print(f"{source:26} {batch:6}  {row_of(measured[2, batch], answer)}   {rate / 1e9:.1f} GB/s fitted")


def predictor(profile: RankProfile, setup: Setup) -> Callable[[CollectiveTimes, float], float]:
    """The step of that profile, by network and slowdown."""
    return lambda times, kappa: step_ms(profile, times, setup, Fitted(overlap_slowdown=kappa))


def fitted_rate(profile: RankProfile, setup: Setup, measured_ms: float) -> float:
    """Bytes per second with which the simulated step takes as long as the measured one."""
    predict = predictor(profile, setup)
    low, high = 1e6, 1e13
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if predict(Rate(middle), KAPPA) > measured_ms else (low, middle)
    return low


def row_of(measured_ms: float, answer: Predicted) -> str:
    """The columns that both tables share."""
    inside = "yes" if answer.low <= measured_ms <= answer.high else "no"
    return (
        f"{measured_ms:5.1f} ms  {answer.value:6.1f} ms  {answer.value / measured_ms - 1:+6.1%}  "
        f"{answer.low:6.1f} to {answer.high:6.1f} ms  {inside:6}"
    )


def mean_absolute(errors: Sequence[float]) -> float:
    """The mean of sizes."""
    return sum(abs(error) for error in errors) / len(errors)


def rows_of(path: Path) -> list[dict[str, str]]:
    """A CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reference", type=Path, default=DEFAULT_REFERENCE, help="folder of the two tables")
    folder = parser.parse_args().reference
    missing = [
        name for name in ("ddp_v100_published.csv", "ddp_v100_pcie_mlp.csv") if not (folder / name).is_file()
    ]
    if missing:
        parser.error(f"{folder} has no {' and no '.join(missing)}; --reference names the folder that does")
    print_resnets(folder / "ddp_v100_published.csv")
    print_mlp(folder / "ddp_v100_pcie_mlp.csv")


if __name__ == "__main__":
    main()
