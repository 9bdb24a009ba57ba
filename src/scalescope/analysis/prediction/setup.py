"""What is simulated, a job on N ranks, and what comes out of it: what happens when."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from scalescope.catalog.strategies.ddp import Ddp
from scalescope.catalog.strategies.fsdp import Fsdp
from scalescope.catalog.strategies.pipeline import Pipeline
from scalescope.experiment.trial import Trial

# ---- Setup: for which ranks, topology and settings a step is predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """Ranks on nodes; a node's network cards share what leaves it."""

    ranks_per_node: int | None = None  # None: all on one
    cards_per_node: int = 1
    cores_per_node: int | None = None  # that exchanges run on; None: not known, or enough for all ranks

    def crowding(self, ranks: int) -> float:
        """Ranks per core of a node, where there are more ranks than cores."""
        here = min(ranks, self.ranks_per_node or ranks)
        return 1.0 if self.cores_per_node is None else max(1.0, here / self.cores_per_node)

    def nodes(self, ranks: int) -> int:
        return 1 if self.ranks_per_node is None else math.ceil(ranks / self.ranks_per_node)


ON_ONE_NODE = RankLayout()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One row that is asked for; names and values are those of the catalog's settings."""

    world_size: int
    strategy: str = "ddp"  # ddp, zero1, fsdp, pipeline
    backend: str = "nccl"  # gloo exchanges two buckets at a time, NCCL one
    layout: RankLayout = RankLayout()
    bucket_cap_mb: float | None = None  # None: 25 MiB after a first bucket of 1 MiB
    comm_hook: str = "none"  # fp16 and bf16 halve what is sent
    accumulation_steps: int = 1
    broadcast_buffers: bool = True  # before each forward pass, as DDP does unless told otherwise
    reshard_after_forward: bool | None = None  # FSDP; None: all blocks do, the root does not
    fsdp_param_dtype: str = "fp32"  # bf16 halves what is gathered
    micro_batches: int = 1  # pipeline: each as large as the profile's
    schedule: str = "1f1b"


# ---- The setup of a trial: what its settings say about ranks and exchanges


_WRAPPERS = {"ddp": "ddp", "fsdp2": "fsdp", "fsdp1": "fsdp"}  # of commands, and the strategies that they are


def setup_of(trial: Trial, layout: RankLayout = ON_ONE_NODE) -> Setup:
    """The trial as a row to predict."""
    setup = Setup(
        world_size=trial.world_size,
        strategy=_strategy_of(trial),
        backend=trial.backend,
        layout=layout,
        accumulation_steps=trial.accumulation_steps,
    )
    if trial.is_command:  # its settings are its own; PyTorch's defaults are most likely
        return setup
    card = trial.strategy_card
    if issubclass(card, Ddp):
        ddp = trial.options(Ddp)
        return dataclasses.replace(
            setup,
            bucket_cap_mb=ddp.bucket_cap_mb,
            comm_hook=ddp.comm_hook,
            broadcast_buffers=ddp.broadcast_buffers,
        )
    if issubclass(card, Fsdp):
        fsdp = trial.options(Fsdp)
        return dataclasses.replace(
            setup,
            reshard_after_forward=fsdp.reshard_after_forward,
            fsdp_param_dtype=fsdp.fsdp_param_dtype,
        )
    if issubclass(card, Pipeline):
        parts = card.parts_of_a_step(trial.rank_batch_size, trial.world_size, trial.settings)
        schedule = trial.options(Pipeline).schedule
        return dataclasses.replace(setup, micro_batches=parts or 1, schedule=schedule)
    return setup


def _strategy_of(trial: Trial) -> str:
    if not trial.is_command:
        return trial.strategy
    wrapper = trial.options(trial.workload_card).observed_wrapper
    return _WRAPPERS.get(wrapper or "", "ddp")


# ---- Timeline: the simulated step as events on two lanes, and what it amounts to


Lane = Literal["compute", "communication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """Something that takes time on one lane; `bucket` numbers what is exchanged."""

    lane: Lane
    name: str  # input, forward, backward, optimizer, all_reduce, all_gather, …
    begin_s: float
    end_s: float
    bucket: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What measurements of two or more ranks say beyond one rank's profile; the defaults are "not known"."""

    overlap_slowdown: float | None = None  # seconds of compute lost per second of overlapping communication
    shared_latency: float | None = None  # of latencies: the part that exchanges side by side do not overlap
    compute_s_per_byte: float | None = None  # compute lost per byte that is exchanged meanwhile
    busy_s_per_byte: float | None = None  # what an exchange takes longer while ranks compute, per byte
    busy_latency: float | None = None  # the same as a share of the exchange's latency
    fp16_s_per_byte: float | None = None  # work of the hook fp16, per byte that is sent
    bf16_s_per_byte: float | None = None
    hook_s: float | None = None  # that a hook adds to each exchange, and takes from compute meanwhile
    contention: dict[int, float] = field(default_factory=dict)  # compute on N ranks ÷ compute on one, by N
    from_launches: int = 0

    def conversion_s_per_byte(self, comm_hook: str) -> float:
        """What a hook adds to an exchange: conversions, and sums that take longer in 16 bits."""
        known = {"fp16": self.fp16_s_per_byte, "bf16": self.bf16_s_per_byte}
        return known.get(comm_hook) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """One simulated step of a typical rank, and of the slowest of all."""

    events: tuple[TimelineEvent, ...]
    step_s: float
    exposed_s: float  # communication that no compute hides
    bubble_s: float = 0.0  # stages of a pipeline that wait for work, transfers not counted
    straggling_s: float = 0.0  # the slowest of all ranks beyond a typical one
    host_s: float = 0.0  # the whole step where the host needs longer to issue it than GPUs to do it
    network_error: float = 0.0  # relative standard deviation of the step that comes from the network's times
    assumptions: tuple[str, ...] = ()
