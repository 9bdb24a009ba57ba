"""How large a job may be in the memory of a device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.catalog.cards import card
from scalescope.catalog.training import STATE_VALUES
from scalescope.catalog.traits import MemoryLayout, ModelSize
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord

# ---- How much a rank's peak may become: its share of what the device, or the host, has for it


def room_of(records: Sequence[RankRecord]) -> int | None:
    """The least that any rank has; ranks on one GPU share it, and ranks on one host its memory."""
    gpus: dict[str, list[RankRecord]] = {}
    hosts: dict[str, list[RankRecord]] = {}
    for record in records:
        gpu = record.counters.get("device/identity") or f"of rank {record.rank}"
        gpus.setdefault(str(gpu), []).append(record)
        hosts.setdefault(record.host, []).append(record)
    rooms = [_share_of_gpu(sharing) for sharing in gpus.values()]
    rooms += [_share_of_host(sharing) for sharing in hosts.values()]
    return min((room for room in rooms if room is not None), default=None)


def _share_of_gpu(records: list[RankRecord]) -> int | None:
    """What is free and what torch has already, for all ranks together; a rank that left freed its part."""
    free = _numbers(records, "device/free")
    reserved = _numbers(records, "measured/reserved")
    if len(free) < len(records) or len(reserved) < len(records):
        return None
    return (min(free) + sum(reserved)) // len(records)


def _share_of_host(records: list[RankRecord]) -> int | None:
    """What the first rank found; later ones may have found batches of the others."""
    available = _numbers(records, "device/available")
    return max(available) // len(records) if available else None


def _numbers(records: list[RankRecord], name: str) -> list[int]:
    values = [record.counters.get(name) for record in records]
    return [value for value in values if isinstance(value, int)]


# ---- How memory grows with the batch, and the search for the largest batch that fits


_TOLERANCE = 0.02
MOST_TRIES = 12
_TRIES_BY_PREDICTION = 6  # after that the interval is halved, without the line
LARGEST_BATCH = 2**31
_UP, _DOWN = 2, 4  # how much further each time the line turns out wrong; what fails is learnt soonest
_KINK = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLine:
    """peak = base + slope × batch, as seen up to a largest batch."""

    base: float
    slope: float
    largest: int

    def largest_batch(self, capacity: int) -> int | None:
        """The largest batch whose peak stays within the capacity; None where the line does not grow."""
        if self.slope <= 0:
            return None
        return max(0, min(LARGEST_BATCH, math.floor((capacity - self.base) / self.slope)))


def fit_line(points: Sequence[tuple[int, int]]) -> FittedLine | None:
    """Least squares over (batch, bytes); None below two different batches.

    With few samples the peak may lie elsewhere, for instance in the optimizer, and not grow at all. Small
    batches that do not lie on the line of the large ones are therefore left out.
    """
    ordered = sorted(points)
    while len({batch for batch, _ in ordered}) >= 2:
        line = _least_squares(ordered)
        spread = max(size for _, size in ordered) - min(size for _, size in ordered)
        miss = max(abs(size - line.base - line.slope * batch) for batch, size in ordered)
        fewer = [point for point in ordered if point[0] > ordered[0][0]]
        if miss <= _KINK * spread or len({batch for batch, _ in fewer}) < 2:
            return line
        ordered = fewer
    return None


def _least_squares(points: Sequence[tuple[int, int]]) -> FittedLine:
    middle = math.fsum(batch for batch, _ in points) / len(points)
    mean = math.fsum(size for _, size in points) / len(points)
    spread = math.fsum((batch - middle) ** 2 for batch, _ in points)
    slope = math.fsum((batch - middle) * (size - mean) for batch, size in points) / spread
    return FittedLine(base=mean - slope * middle, slope=slope, largest=max(batch for batch, _ in points))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The largest batch seen to fit and the smallest seen not to; 0 fits always, None is not known.

    There are only `most` samples, where the data says so or a batch was larger than all of them.
    """

    fits: int
    fails: int | None
    most: int | None = None

    @property
    def is_all(self) -> bool:
        """Whether all samples there are fit at once."""
        return self.most is not None and self.fits >= self.most

    @property
    def is_closed(self) -> bool:
        """Whether the two are so close that no further try is needed."""
        if self.fails is None or self.is_all:
            return self.is_all or self.fits >= LARGEST_BATCH
        return self.fails - self.fits <= max(1, int(self.fits * _TOLERANCE))


def next_batch(bracket: Bracket, predicted: int | None, tries: int) -> int | None:
    """The batch to try next, of no more samples than there are; None once enough was tried."""
    batch = _next_batch(bracket, predicted, tries)
    return batch if batch is None or bracket.most is None else min(batch, bracket.most)


def _next_batch(bracket: Bracket, predicted: int | None, tries: int) -> int | None:
    low, high = bracket.fits, bracket.fails
    if bracket.is_closed or tries >= MOST_TRIES:
        return None
    if high is not None and tries >= _TRIES_BY_PREDICTION:
        return (low + high) // 2
    if predicted is None:
        return min(LARGEST_BATCH, 2 * low or 1) if high is None else (low + high) // 2
    step = max(1, int(low * _TOLERANCE), int(predicted * _TOLERANCE))
    if high is None:
        beyond = low + max(step, _UP * (low - predicted))
        return min(LARGEST_BATCH, max(predicted, beyond))
    # Next to an edge the line adds nothing: a step away from it closes the bracket, or moves it far.
    wanted = max(predicted, low + max(step, _UP * (low - predicted)))
    wanted = min(wanted, high - max(step, _DOWN * (predicted - high)))
    return wanted if low < wanted < high else (low + high) // 2


# ---- The least memory that a trial can take, by its cards alone: what exceeds the machine is certain to fail


_VALUE_BYTES = 4  # of parameters, gradients and optimizer state, in every precision
_READY_BATCHES = 2  # of synthetic samples, made once and kept
_SHORT_PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory:
    """Bytes of one rank that are needed at the same time; a step may take more."""

    parameters: int
    gradients: int
    optimizer: int
    buckets: int  # a second copy of the gradients
    inputs: int
    activations: int
    keeps_gradients: bool  # also while there are activations

    @property
    def model(self) -> int:
        """What the model needs whatever the batch."""
        return self.parameters + self.gradients + self.optimizer + self.buckets

    @property
    def peak(self) -> int:
        """The larger of both moments: the end of the forward pass, and the end of the backward pass."""
        lasting = self.parameters + self.optimizer + self.buckets + self.inputs
        if self.keeps_gradients:
            return lasting + self.gradients + self.activations
        return lasting + max(self.gradients, self.activations)


def least_memory(trial: Trial) -> LeastMemory | None:
    """What one rank needs at least; None where the model is not known before it is built."""
    size = _model_size(trial)
    if size is None:
        return None
    # A formula is missing where ranks share even the model: then each has its share of everything.
    layout = trial.memory_layout or MemoryLayout(sharded=("parameters", "gradients", "optimizer"))
    parameters = size.parameters * _VALUE_BYTES
    states = STATE_VALUES[trial.optimizer]
    samples = _samples(trial)
    is_short = trial.precision in _SHORT_PRECISIONS or layout.gathers_16_bit
    return LeastMemory(
        parameters=_share(parameters, trial, sharded="parameters" in layout.sharded),
        gradients=_share(parameters, trial, sharded="gradients" in layout.sharded),
        buckets=parameters if layout.copies_gradients else 0,
        optimizer=_share(states * parameters, trial, sharded="optimizer" in layout.sharded),
        inputs=samples * size.sample_bytes * (_READY_BATCHES if trial.num_workers is None else 1),
        activations=samples * size.kept_values * (2 if is_short else _VALUE_BYTES),
        keeps_gradients=layout.keeps_gradients and not layout.copies_gradients,
    )


def largest_batch_in(trial: Trial, room: int) -> int | None:
    """The largest batch, in the way it was asked for, whose least memory is within `room` per rank."""
    low, high = 0, LARGEST_BATCH  # of samples of one forward pass
    while high - low > 1:
        middle = (low + high) // 2
        least = least_memory(with_micro_batch(trial, middle))
        if least is not None and least.peak <= room:
            low = middle
        else:
            high = middle
    return None if low == 0 else _asked_batch(with_micro_batch(trial, low))


def with_micro_batch(trial: Trial, samples: int) -> Trial:
    """The trial with another number of samples per forward pass."""
    if trial.global_batch_size is None:
        return trial.replace(batch_size=samples)
    return trial.replace(global_batch_size=samples * trial.replicas * trial.accumulation_steps)


def _asked_batch(trial: Trial) -> int | None:
    return trial.batch_size if trial.global_batch_size is None else trial.global_batch_size


def _model_size(trial: Trial) -> ModelSize | None:
    if not trial.has_strategy:
        return None
    size: ModelSize | None = trial.options(trial.workload_card).model_size()
    return size


def _share(size: int, trial: Trial, *, sharded: bool) -> int:
    return -(-size // trial.world_size) if sharded else size


def _samples(trial: Trial) -> int:
    """Samples whose memory is certain; a data set may have fewer than the batch, and some ranks keep none."""
    if card("data", trial.data).ends or trial.stand_in or trial.memory_layout is None:
        return 0
    return trial.micro_batch_size
