"""The training benchmark: warm up, measure the steps that follow, return raw samples."""

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from scalescope import clocks
from scalescope.catalog.benchmarks.train import AUTO, Train
from scalescope.errors import BadInput
from scalescope.experiment.explanations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import OWN_START, PHASES_TIME, AttachPhase
from scalescope.results.result import LARGEST_PARAMETERS
from scalescope.worker.ablations import (
    count_model_collectives,
    refuse_model_collectives,
)
from scalescope.worker.counting import count_flops_per_sample
from scalescope.worker.engine.explaining import Explanations, is_try
from scalescope.worker.engine.profiling import ProfiledModel, is_compiled, profiled
from scalescope.worker.engine.recording import is_recorded
from scalescope.worker.engine.steps import Engine, Steps, driven, steps_in_window
from scalescope.worker.levers.precision import other_tf32
from scalescope.worker.machine.rates import BareProduct
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.rank_profile import trained_parameters
from scalescope.worker.training.activity import GarbageWatch, store_activity
from scalescope.worker.training.assembly import bare_step, build_feed, build_workload, with_levers
from scalescope.worker.training.ddp_logging import largest_parameters
from scalescope.worker.training.evaluation import Evaluation
from scalescope.worker.training.feeding import Feed, PeekableBatches
from scalescope.worker.training.measurements import Measurements, Store, explained, parameter_checksum
from scalescope.worker.training.ranges import RangeOf, parts_inside, step_marks, with_input_range, with_ranges
from scalescope.worker.training.stand_in import stand_in_for
from scalescope.worker.training.step import Step, StepMaker, StepWindow, Workload

_MOST_RANKS_SHOWN = 8
_INPUT_BOUND = 0.1  # of the step


def measure(
    trial: Trial,
    group: Group,
    device: torch.device,
    position: Position,
    fault: Fault | None,
    phases: Sequence[AttachPhase] = (),
) -> Measurements:
    """Run the trial and return the raw measurements; with phases, also what measures these."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # attached ranks may have run other trials in this process
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(prepared(trial, group, device, position, fault))
        # Before the warm-up: a pause after it would let loader processes prefetch for the window.
        product = BareProduct.sized_for(device, trial.precision)
        loop.known.counters |= {
            "matmul_size": product.size,
            "matmul_flops_per_s_before": product.flops_per_s(),
        }
        if trial.options(Train).eval:
            loop.evaluation = Evaluation(loop.workload, trial, group, device)
        if loop.steps.step.watch is not None:
            loop.steps.step.watch.pause()
        torch.manual_seed(
            trial.settings["seed"] + group.rank
        )  # replicas start equal, but use different dropout masks
        measured = driven(_trained(loop, product), loop.make_step)
        if phases:
            measured.go_on = partial(_go_on, loop, measured, phases, stack.pop_all())
        return measured


def _go_on(
    loop: "OwnLoop",
    measured: Measurements,
    phases: Sequence[AttachPhase],
    stack: contextlib.ExitStack,
    store: Store,
) -> None:
    """Measure the phases in this process; then end the loop."""
    times_s = measured.samples["step_time_s"]
    loop.step_s = statistics.median(times_s)
    explanations = Explanations(
        engine=loop.engine,
        loop=loop,
        ranks=OwnRanks(loop.group, loop.device),
        phases=phases,
        store=lambda number, phase, steps: store(number, phase),
        has_loader=loop.trial.settings["num_workers"] is not None,
        step_s=statistics.fmean(times_s),
        plain_step_s=loop.step_s,
        longest_warmup_s=max(measured.samples["warmup_step_time_s"]),
    )
    with stack:
        driven(explanations.measured(), loop.make_step)
    measured.counters |= {f"{OWN_START}{name}": reason for name, reason in explanations.reasons.items()}
    measured.counters[PHASES_TIME] = explanations.took_s


def _trained(loop: "OwnLoop", product: BareProduct) -> Steps[Measurements]:
    """Timed steps, and a few more for the profile."""
    measured = yield from loop.engine.trained()
    measured.counters["matmul_flops_per_s_after"] = product.flops_per_s()
    record_losses(measured, loop.steps.window, loop.warmup_losses)
    if loop.engine.trial.strategy_card.replicated:
        measured.counters["parameter_checksum"] = parameter_checksum(loop.steps.step.module)
    profile = yield from profiled(loop.engine, measured.samples["step_time_s"], loop.profiled_model)
    measured.counters |= profile.counters
    measured.tables |= profile.tables
    return measured


@contextlib.contextmanager
def prepared(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Iterator["OwnLoop"]:
    """The loop over the trial's workload, feed and step; ends the loader's processes afterwards."""
    options = trial.options(Train)
    measurements = Measurements()
    workload = build_workload(trial, group, device)
    measurements.counters |= {**workload.counters, **_count_parameters(workload.model)}
    measurements.tables[LARGEST_PARAMETERS] = largest_parameters(
        [workload.model], workload.model.parameters()
    )
    if has_ablation(trial, NO_COMM) and not options.stand_in:
        refuse_model_collectives(workload.model)
    feed = build_feed(trial, workload, group, device)
    try:
        torch.manual_seed(trial.settings["seed"] + group.rank)  # synthetic samples differ between ranks
        if trial.workload_card.counts_operations and not options.stand_in and workload.own_step is None:
            feed = _count_operations(feed, workload, device, measurements)
        if options.stand_in:
            workload = stand_in_for(workload, trial, group, device, measurements)
        bare = bare_step(trial, workload, device)
        step = _delayed(with_levers(trial, bare, device), options.delay_ms)
        if not options.stand_in:
            measurements.counters |= _own_optimizer(workload, step)
        _check_same_length(options, feed, group)
        schedule = _schedule_of(options, feed, step.accumulation_steps)
        steps = StepMaker(step, feed.batches, position, fault, schedule.parts_of)
        position.plan(schedule.steps or 0)
        with explained(step, feed.batches, position):
            yield OwnLoop(
                workload, feed, steps, schedule, trial, group, device, position, fault, measurements, bare
            )
    finally:
        feed.close()


def _own_optimizer(workload: Workload, step: Step) -> dict[str, float | int | str | None]:
    """The classes of the optimizers that the user brought, and whether all of them are fused."""
    brought = workload.make_optimizer if workload.own_step is None else workload.own_step.optimizers
    if brought is None:
        return {}
    names = dict.fromkeys(type(optimizer).__name__ for optimizer in step.optimizers)
    fused = all(optimizer.defaults.get("fused") for optimizer in step.optimizers)
    return {"own_optimizer": ", ".join(names), "optimizer_is_fused": int(fused)}


def _count_operations(
    feed: Feed, workload: Workload, device: torch.device, measurements: Measurements
) -> Feed:
    """Count the operations per sample on the first batch; the returned feed still begins with that batch."""
    batches = PeekableBatches(feed.batches)
    measurements.counters["model_flops_per_sample"] = count_flops_per_sample(workload, batches.first, device)
    return dataclasses.replace(feed, batches=batches)


def _delayed(step: Step, delay_ms: float) -> Step:
    """The step with an added delay, for validation: an analysis must detect it."""
    if delay_ms == 0.0:
        return step

    def clear() -> None:
        step.clear()
        clocks.sleep(delay_ms / 1e3)

    return dataclasses.replace(step, clear=clear)


@dataclass(frozen=True)
class StepSchedule:
    """The number of steps and the ends of epochs; without epochs, steps fill a time window."""

    epoch_steps: int | None
    epochs: int
    epoch_batches: int | None  # known if an epoch is all samples once
    accumulation_steps: int

    @property
    def steps(self) -> int | None:
        """All steps, including warm-up; None if a time window decides."""
        return None if self.epoch_steps is None else self.epochs * self.epoch_steps

    def parts_of(self, step: int) -> int:
        """Batches of a step; the last step of an epoch takes the rest: steps do not span epochs."""
        if self.epoch_batches is None or self.epoch_steps is None:
            return self.accumulation_steps
        used = step % self.epoch_steps * self.accumulation_steps
        return min(self.accumulation_steps, self.epoch_batches - used)


def _schedule_of(options: Train, feed: Feed, accumulation_steps: int) -> StepSchedule:
    if isinstance(options.steps_per_epoch, int):
        return StepSchedule(options.steps_per_epoch, options.epochs, None, accumulation_steps)
    if options.steps_per_epoch == AUTO:
        return StepSchedule(None, 1, None, accumulation_steps)
    if feed.epoch_batches is None:
        raise BadInput("steps_per_epoch all: the length of this data is unknown; use a number")
    epoch_steps = math.ceil(feed.epoch_batches / accumulation_steps)
    total = options.epochs * epoch_steps
    if options.warmup_steps >= total:
        raise BadInput(f"warmup_steps {options.warmup_steps} must be below the {total} steps of the data")
    return StepSchedule(epoch_steps, options.epochs, feed.epoch_batches, accumulation_steps)


def _check_same_length(options: Train, feed: Feed, group: Group) -> None:
    """Ranks with less data would leave while the others still wait for their gradients."""
    if isinstance(options.steps_per_epoch, int) or options.steps_per_epoch == AUTO:
        return
    count = "an unknown number of" if feed.epoch_batches is None else str(feed.epoch_batches)
    batches = {group.rank: count, **group.exchange("epoch", count)}
    if len(set(batches.values())) > 1:
        shown = list(dict(sorted(batches.items())).items())[:_MOST_RANKS_SHOWN]
        lengths = ", ".join(f"rank {rank} has {count} batches" for rank, count in shown)
        more = "" if len(shown) == len(batches) else ", ..."
        raise BadInput(
            f"steps_per_epoch all: the length of the data differs between ranks: {lengths}{more}; "
            "give all ranks the same data (each gets its share of it), or use a number of steps"
        )


@dataclass
class OwnLoop:
    """Our own training loop, as the engine sees it."""

    workload: Workload
    feed: Feed
    steps: StepMaker
    schedule: StepSchedule
    trial: Trial
    group: Group
    device: torch.device
    position: Position
    fault: Fault | None
    known: Measurements  # of the model and the machine, before the first step
    bare: Step  # without levers
    switched_steps: dict[str, Step] = field(default_factory=dict)  # with other levers, by trial
    step_s: float = 0.0  # of the window, once that is over
    evaluation: Evaluation | None = None
    warmup_losses: list[Tensor] = field(default_factory=list)

    @cached_property
    def engine(self) -> Engine:
        ranks = OwnRanks(self.group, self.device)
        return Engine(trial=self.trial, device=self.device, ranks=ranks, position=self.position, loop=self)

    def make_step(self) -> None:
        self.steps.make()

    def alive(self, steps: int) -> None:
        """Each step publishes its own position."""

    def end_warmup_step(self) -> None:
        """Nothing is noted."""

    def forget(self) -> None:
        """Only the first steps are kept: a loss among them may be the first bad one."""
        kept = self.steps.window.batch_losses[: self.trial.warmup_steps]
        self.steps.begin_window()
        self.steps.window.batch_losses += kept

    def batches_ahead(self) -> int:
        return self.feed.batches_ahead

    def windows(self, step_s: float, made: int) -> list[int]:
        """One, or one for every evaluation."""
        options = self.trial.options(Train)
        epoch_steps, steps = self.schedule.epoch_steps, self.schedule.steps
        if epoch_steps is None or steps is None:
            assert options.window is not None, "a launch without a number of steps requires a window"
            return [steps_in_window(options.window, step_s, options.min_steps)]
        if not options.eval:
            return [steps - made]
        ends = range(epoch_steps, steps + 1, epoch_steps)
        return [max(0, min(epoch_steps, end - made)) for end in ends]

    def begin_window(self) -> None:
        before = self.steps.window
        self.warmup_losses = before.losses
        self.steps.begin_window()
        self.steps.window.batch_losses += before.batch_losses  # any of them may be the first bad one
        self.feed.input_times.begin()
        self._first_step = self.position.begun + 1

    def end_window(self) -> None:
        if self.evaluation is not None:
            self.evaluation.run(self.position, self.known)
            self.group.barrier()

    def collect(self, measurements: Measurements, garbage: GarbageWatch) -> None:
        """What our own loop knows beyond times: samples, the host's parts, long steps, epochs."""
        step, window, times_s = self.steps.step, self.steps.window, measurements.samples["step_time_s"]
        self.with_known(measurements)
        measurements.counters["measured_samples"] = window.samples
        measurements.counters |= {f"host/{part}_s": s / len(times_s) for part, s in window.host_s.items()}
        if "soak_s" in measurements.counters:
            self.warmup_losses = []  # some of them were dropped
        store_activity(measurements, window, self._first_step, garbage)
        epoch_steps = self.schedule.epoch_steps
        if epoch_steps is not None:
            all_times_s = [*measurements.samples["warmup_step_time_s"], *times_s]
            measurements.samples["epoch_time_s"] = _epoch_times(all_times_s, epoch_steps)
            measurements.counters["epoch_steps"] = epoch_steps
        measurements.samples |= step.samples()
        measurements.counters |= {**step.counters(), **self.feed.input_times.counters()}
        _inject_fault(step, window, self.fault)

    def with_known(self, measurements: Measurements) -> Measurements:
        """The measurements, with what was known before the first step."""
        measurements.counters = {**self.known.counters, **measurements.counters}
        measurements.samples = {**self.known.samples, **measurements.samples}
        measurements.tables = {**self.known.tables, **measurements.tables}
        return measurements

    @contextlib.contextmanager
    def marked(self, range_of: RangeOf, count: int) -> Iterator[None]:
        """Ranges around the parts of each step, and marks around whole ones."""
        step, batches, begun = self.steps.step, self.steps.batches, self.position.begun
        marks = step_marks(with_ranges(step, range_of), range(begun, begun + count))
        try:
            with marks as marked:
                self.steps.step, self.steps.batches = marked, with_input_range(batches, range_of)
                yield
        finally:
            self.steps.step, self.steps.batches = step, batches

    # What follows on the window in the same process.

    def why_not_here(self, trial: Trial) -> str | None:
        if is_recorded(trial):
            return None
        if not is_try(trial):
            return "ranks of scalescope's own loop get a separate start"
        if self.steps.step.is_whole or self.trial.options(Train).stand_in:
            return "the parts of this step cannot be separated"
        if self._waits_for_input():
            return "steps wait for input, so fast ones would use up batches that slow ones prefetched"
        return None

    def _waits_for_input(self) -> bool:
        """Whether loader processes are slower than the step."""
        facts = self.feed.input_times.counters()
        waited_s = float(facts.get("loader_s") or 0.0) * self.steps.step.accumulation_steps
        return bool(facts.get("loader/workers")) and waited_s > _INPUT_BOUND * self.step_s

    def ablated(self, trial: Trial) -> AbstractContextManager[None]:
        """Nothing is removed from our own loop."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def switched(self, trial: Trial) -> Iterator[None]:
        """The step with the levers of another trial; what they compile is kept for the next time."""
        step = self.steps.step
        with other_tf32(trial.precision == "tf32"):
            if trial.trial_id not in self.switched_steps:
                self.switched_steps[trial.trial_id] = with_levers(trial, self.bare, self.device)
            self.steps.step = self.switched_steps[trial.trial_id]
            try:
                yield
            finally:
                self.steps.step = step

    def profiled_model(self) -> ProfiledModel:
        """A user's own step may wait for the GPU; the host is then never ahead of it."""
        step = self.steps.step
        marks_units = not (self.trial.is_compiled or step.is_whole or is_compiled(step.module))
        return ProfiledModel(
            parameters=trained_parameters(step.module),
            units_of=step.module if marks_units else None,
            micro_batches=None if step.is_whole else step.accumulation_steps,
            may_wait_for_gpu=step.is_whole,
            inside=partial(parts_inside, step) if step.is_whole else None,
        )


@dataclass(frozen=True)
class OwnRanks:
    """The ranks of our own loop, as the engine sees them."""

    group: Group
    device: torch.device

    @property
    def rank(self) -> int:
        return self.group.rank

    def common(self, name: str, value: float) -> float:
        """The largest value; also a meeting."""
        return self.group.largest(value, self.device)

    def agree(self, name: str, text: str) -> str:
        """What rank 0 says."""
        return self.group.exchange(name, text).get(0, text)

    def meet(self, name: str) -> None:
        self.group.barrier()

    def arrive(self, name: str) -> None:
        """Nobody waits at a meeting that is not a barrier."""


def _epoch_times(step_times_s: list[float], epoch_steps: int) -> list[float]:
    """Time of every epoch, including warm-up steps."""
    starts = range(0, len(step_times_s), epoch_steps)
    return [math.fsum(step_times_s[start : start + epoch_steps]) for start in starts]


def record_losses(measurements: Measurements, steps: StepWindow, warmup_losses: Sequence[Tensor]) -> None:
    """Store the measured losses, or the first step with a non-finite one, which makes the result invalid.

    Only now are they read: inside the window that would wait for the device.
    """
    if not steps.batch_losses:  # of a user's own step that returns none
        return
    numbers, batch_losses = zip(*steps.batch_losses, strict=True)
    finite = [math.isfinite(loss) for loss in _values_of(batch_losses)]
    bad = [number for number, is_finite in zip(numbers, finite, strict=True) if not is_finite]
    if bad:
        measurements.counters["first_step_with_bad_loss"] = bad[0]
    else:
        measurements.samples["loss"] = _values_of(steps.losses)
        if warmup_losses:
            measurements.samples["warmup_loss"] = _values_of(warmup_losses)


def _values_of(losses: Sequence[Tensor]) -> list[float]:
    """Read in one copy, unless some are on the host and some on the device."""
    if len({loss.device for loss in losses}) > 1:
        losses = [loss.cpu() for loss in losses]
    values: list[float] = torch.stack(tuple(losses)).float().tolist()
    return values


_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _count_parameters(module: nn.Module) -> dict[str, float | int | str | None]:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return {
        "parameters": sum(parameter.numel() for parameter in trained),
        "parameter_tensors": len(trained),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in trained),
        "buffer_bytes": sum(buffer.numel() * buffer.element_size() for buffer in module.buffers()),
        "model_collectives": count_model_collectives(module),
        "convolutions": sum(isinstance(part, _CONVOLUTIONS) for part in module.modules()),
    }


def _inject_fault(step: Step, steps: StepWindow, fault: Fault | None) -> None:
    if fault is None:
        return
    if fault.corrupts("nan") and steps.batch_losses:
        number, loss = steps.batch_losses[-1]
        steps.batch_losses[-1] = number, torch.full_like(loss, float("nan"))
    if fault.corrupts("diverge"):
        with torch.no_grad():
            next(step.module.parameters()).add_(1.0)
