"""Properties of every card of a kind besides its settings, with defaults that hold for most."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from scalescope.catalog.code_lines import Code, ScriptContext
from scalescope.catalog.setting import PerDevice, Scalar

Defaults = Mapping[str, Scalar | PerDevice]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a model takes by its card alone; the values that are kept are a lower bound."""

    parameters: int
    sample_bytes: int = 0  # of one sample as it lies on the device
    kept_values: int = 0  # per sample, from the forward pass for the backward pass, in 16 or 32 bits each


class WorkloadTraits:
    """What a workload is fed, and how others see it."""

    takes: ClassVar[tuple[str, ...]] = ("synthetic",)
    # Where settings of other cards start from with this workload.
    defaults: ClassVar[Defaults] = {}
    unit: ClassVar[str] = "samples"
    has_convolutions: ClassVar[bool] = False
    has_attention: ClassVar[bool] = False
    brings_data: ClassVar[bool] = False  # with batches of its own, perhaps of one size only
    counts_operations: ClassVar[bool] = False  # by running it, for want of a formula
    is_command: ClassVar[bool] = False  # a command with its own training loop; we observe from inside
    levers: ClassVar[tuple[str, ...] | None] = None  # the cards of levers that apply to it; None: all
    # Settings of other cards that the command decides: they cannot be given, and no trial claims them.
    decides: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def check_name(name: str) -> None:
        """Refuse a name that stands for nothing that can be run."""

    def flops_per_sample(self) -> int | None:
        """Floating-point operations of forward and backward for one sample; None where they are not known."""
        return None

    def model_size(self) -> ModelSize | None:
        """What the model takes; None where that is not known before it is built."""
        return None

    def tokens_per_sample(self) -> int | None:
        """Tokens in a sample, padding included; None where samples are not text."""
        return None

    def least_step_s(self) -> float:
        """What a step takes however fast the device is."""
        return 0.0


class DataTraits:
    """What a source of data offers."""

    ends: ClassVar[bool] = False  # an epoch has a natural length
    # Steps of an epoch where epochs are asked for without their length; None is every sample once.
    epoch_steps: ClassVar[int | PerDevice | None] = PerDevice(cpu=40, cuda=105)
    has_validation: ClassVar[bool] = False
    has_corpus: ClassVar[bool] = False  # texts, loaded by worker/data/NAME.py
    defaults: ClassVar[Defaults] = {}


MemoryState = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLayout:
    """How a strategy changes the memory that one rank alone would need; as it stands, not at all."""

    sharded: tuple[MemoryState, ...] = ()  # each rank keeps only its share of these
    keeps_gradients: bool = False  # in buckets, also while there are activations
    copies_gradients: bool = False  # buckets hold a second copy of all gradients
    keeps_first_buckets: bool = False  # beside those that are formed after the first step
    # Sharded parameters that are whole while they compute: one block at a time, or from then on all of them.
    gathers: Literal["nothing", "block", "model"] = "nothing"
    gathers_16_bit: bool = False
    is_upper_bound: bool = False  # a rank needs at most this much


class StrategyTraits:
    """What a strategy does with ranks, and which comparisons make sense with it."""

    title: ClassVar[str | None] = None  # in sentences, where people write it differently from its flag
    least_ranks: ClassVar[int] = 1
    wraps: ClassVar[bool] = True  # False: the plain loop on one rank, which others are compared with
    plain_on_one_rank: ClassVar[bool] = False  # on one rank it is itself what others are compared with
    ablations: ClassVar[tuple[str, ...]] = ()
    # Steps until a step on a GPU is like all later ones, where that takes more than a few.
    least_gpu_warmup_steps: ClassVar[int] = 0
    replicated: ClassVar[bool] = True  # every rank ends with the same parameters
    evaluates: ClassVar[bool] = True
    all_reduces_gradients: ClassVar[bool] = False  # so a curve of all-reduces predicts its exchange
    divides_batch: ClassVar[bool] = False  # not every batch can be run: it has to divide evenly
    # Settings that change what is computed, and not only how the work is spread over ranks.
    work_settings: ClassVar[tuple[str, ...]] = ()
    # The layout at default settings, where changing to this strategy is a way to save memory.
    saving_layout: ClassVar[MemoryLayout | None] = None

    @classmethod
    def removable(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The ablations that are possible with these settings."""
        return cls.ablations

    @staticmethod
    def memory_layout(settings: Mapping[str, Any]) -> MemoryLayout | None:
        """How the strategy changes a rank's memory with these settings; None where no formula is known."""
        return None

    @staticmethod
    def parts_of_a_step(batch_size: int, world_size: int, settings: Mapping[str, Any]) -> int | None:
        """Into how many parts a batch is cut that pass through the ranks one by one; None where each rank
        works on samples of its own."""
        return None

    @staticmethod
    def replicas(world_size: int) -> int:
        """How many ranks, or groups of ranks, work on samples of their own."""
        return world_size

    @staticmethod
    def code(context: ScriptContext) -> Code:
        """What wraps a model with this strategy in a user's script."""
        return Code(instead="this strategy exists in scalescope only, not in PyTorch")

    # False: forward runs a whole schedule, backward included, and activations cannot be measured alone.
    has_separate_backward: ClassVar[bool] = True
