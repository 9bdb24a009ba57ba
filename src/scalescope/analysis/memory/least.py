"""The least memory that a trial can take, by its cards alone: what exceeds the machine is certain to fail."""

from dataclasses import dataclass

from scalescope.analysis.memory.fit import LARGEST_BATCH
from scalescope.catalog.cards import card
from scalescope.catalog.training import STATE_VALUES
from scalescope.catalog.traits import MemoryLayout, ModelSize
from scalescope.experiment.trial import Trial

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
