"""The training benchmark: warm up, measure the steps that follow, return raw samples."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scalescope import clocks
from scalescope.catalog.benchmarks.train import AUTO, Train, warmup_of
from scalescope.errors import BadInput
from scalescope.experiment.ablations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.results.ranks.heartbeat import RankStage
from scalescope.results.result import LARGEST_PARAMETERS, WINDOW
from scalescope.worker.ablations.model_collectives import (
    count_model_collectives,
    refuse_model_collectives,
)
from scalescope.worker.counting.flops import count_flops_per_sample
from scalescope.worker.machine.calibration import BareProduct
from scalescope.worker.machine.gpu_state import sm_clock_hz
from scalescope.worker.machine.timing import clock_for
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.position import Position
from scalescope.worker.trace.profiled_steps import profile_steps, profiled_count
from scalescope.worker.training.activity.watch import ActivityWatch
from scalescope.worker.training.assembly import build_feed, build_step, build_workload
from scalescope.worker.training.checksum import parameter_checksum
from scalescope.worker.training.evaluation import Evaluation
from scalescope.worker.training.failures import explained
from scalescope.worker.training.feeding import Feed, PeekableBatches
from scalescope.worker.training.largest_parameters import largest_parameters
from scalescope.worker.training.measurements import Measurements
from scalescope.worker.training.stand_in import stand_in_for
from scalescope.worker.training.step import Step, StepWindow, Workload, run_steps
from scalescope.worker.training.warmup import Warmup, extend_on_gpu, soak, steps_in_window, typical_step_s

_STEPS_AFTER_PAUSE = 2  # they use up what loaders prefetch while a sensor is read
_MOST_RANKS_SHOWN = 8


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """Run the trial and return the raw measurements."""
    measurements = Measurements()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # attached ranks may have run other trials in this process
    with prepared(trial, group, device, position, fault, measurements) as run:
        evaluation = Evaluation(run.workload, trial, group, device) if trial.options(Train).eval else None
        torch.manual_seed(
            trial.settings["seed"] + group.rank
        )  # replicas start equal, but use different dropout masks
        steps = _train(trial, run, group, evaluation, measurements)
        _record_outcome(trial, run, steps, measurements)
        _record_profile(trial, run, measurements)  # the last: it makes more steps
    return measurements


def _record_outcome(trial: Trial, run: "TrainingRun", steps: StepWindow, measurements: Measurements) -> None:
    """What the measured steps left: memory, counts, losses and parameters."""
    if run.device.type == "cuda":
        measurements.counters["peak_memory_bytes"] = torch.cuda.max_memory_allocated(run.device)
    measurements.samples |= run.step.samples()
    measurements.counters |= run.step.counters()
    measurements.counters |= run.feed.input_times.counters()
    _inject_fault(run.step, steps, run.fault)
    record_losses(measurements, steps)
    if trial.strategy_card.replicated:
        measurements.counters["parameter_checksum"] = parameter_checksum(run.step.module)


def _record_profile(trial: Trial, run: "TrainingRun", measurements: Measurements) -> None:
    """What a step of one rank consists of, from a few more steps with hooks."""
    times_s = measurements.samples["step_time_s"]
    step_s = math.fsum(times_s) / len(times_s)
    count = profiled_count(trial, step_s, len(times_s))
    if not count:
        return

    def run_marked(step: Step, feed: Feed) -> None:
        dataclasses.replace(run, step=step, feed=feed).steps(count)

    profile = profile_steps(trial, run.step, run.feed, run.device, run_marked, step_s)
    measurements.counters |= profile.counters
    measurements.tables |= profile.tables


@contextlib.contextmanager
def prepared(
    trial: Trial,
    group: Group,
    device: torch.device,
    position: Position,
    fault: Fault | None,
    measurements: Measurements,
) -> Iterator["TrainingRun"]:
    """The trial's workload, feed and step, ready to run; ends the loader's processes afterwards."""
    options = trial.options(Train)
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
        step = _delayed(build_step(trial, workload, device), options.delay_ms)
        if not options.stand_in:
            measurements.counters |= _own_optimizer(workload, step)
        _check_same_length(options, feed, group)
        schedule = _schedule_of(options, feed, step.accumulation_steps)
        with explained(step, feed.batches, position):
            yield TrainingRun(workload, step, feed, device, position, fault, schedule)
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
        """Batches of a step; the last step of an epoch takes the rest, so that steps do not span epochs."""
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


@dataclass(frozen=True)
class TrainingRun:
    """Everything needed to run steps."""

    workload: Workload
    step: Step
    feed: Feed
    device: torch.device
    position: Position
    fault: Fault | None
    schedule: StepSchedule

    def steps(self, count: int) -> tuple[list[float], StepWindow]:
        """Run the next `count` steps; returns their times, and their losses and sample count."""
        clock = clock_for(self.device, count)
        window = run_steps(
            self.step, self.feed.batches, count, clock, self.position, self.fault, self.schedule.parts_of
        )
        return clock.step_times_s(), window


def _train(
    trial: Trial, run: TrainingRun, group: Group, evaluation: Evaluation | None, measurements: Measurements
) -> StepWindow:
    """Warm-up, then all other steps; for an evaluation, the clock stops after every epoch.

    The returned window has the losses of the measured steps, and those of all batches.
    """
    options = trial.options(Train)
    # Before the warm-up: a pause after it would let loader processes prefetch for the window.
    product = BareProduct.sized_for(run.device, trial.precision)
    measurements.counters |= {"matmul_size": product.size, "matmul_flops_per_s_before": product.flops_per_s()}
    activity = ActivityWatch(run.device, run.position)
    warmup = _warm_up(trial, run, group, measurements)
    steps_left = _agree_on_steps(options, run, group, warmup.times_s)
    run.position.plan(run.position.completed + sum(steps_left))
    run.position.enter(RankStage.STEADY)
    run.feed.input_times.begin()
    measured = StepWindow(
        batch_losses=warmup.steps.batch_losses, warmup_losses=_losses_before_window(warmup, measurements)
    )
    times: list[float] = []
    began = clocks.monotonic()
    for count in steps_left:
        if count:
            step_times, window = activity.steps(run.steps, count)
            times += step_times
            measured.extend(window)
        if evaluation is not None:
            evaluation.run(run.position, measurements)
            group.barrier()
    measurements.counters |= dict(zip(WINDOW, (began, clocks.monotonic()), strict=True))
    _record_clock(measurements, "after", run.device)
    measurements.counters |= {"measured_samples": measured.samples, "measured_steps": len(times)}
    measurements.counters |= {f"host/{part}_s": s / len(times) for part, s in measured.host_s.items()}
    measurements.samples |= {"warmup_step_time_s": warmup.times_s, "step_time_s": times}
    activity.record(measurements)
    if run.schedule.epoch_steps is not None:
        all_times = [*warmup.times_s, *times]
        measurements.samples["epoch_time_s"] = _epoch_times(all_times, run.schedule.epoch_steps)
        measurements.counters["epoch_steps"] = run.schedule.epoch_steps
    measurements.counters["matmul_flops_per_s_after"] = product.flops_per_s()
    return measured


def _warm_up(trial: Trial, run: TrainingRun, group: Group, measurements: Measurements) -> Warmup:
    """The steps before the measured ones; a launch that counts its steps makes exactly as many as asked."""
    options = trial.options(Train)
    if run.step.watch is not None:
        run.step.watch.pause()
    sm_clock_hz(run.device)  # the first reading loads a library
    run.position.plan(run.schedule.steps or 0)
    run.position.enter(RankStage.WARMUP)
    warmup = Warmup()
    warmup.run(run.steps, warmup_of(trial.settings))
    if run.schedule.steps is None:
        extend_on_gpu(warmup, run.steps, group, run.device)
    # From here on a step has a usual length, so that a rank that hangs is noticed, however long it soaks.
    run.position.enter(RankStage.STEADY, slowest_warmup_s=max(warmup.times_s))
    if run.schedule.steps is None and options.soak is not None:
        step_s = typical_step_s(warmup.times_s)
        measurements.counters |= soak(step_s, run.steps, group, run.device, options.soak)
    _record_clock(measurements, "before", run.device)
    if run.schedule.steps is None and run.device.type == "cuda":
        warmup.run(run.steps, _STEPS_AFTER_PAUSE)
    return warmup


def _losses_before_window(warmup: Warmup, measurements: Measurements) -> list[Tensor]:
    """Losses of all steps before the window; none where a soak dropped some of them."""
    return [] if "soak_s" in measurements.counters else warmup.steps.losses


def _record_clock(measurements: Measurements, when: str, device: torch.device) -> None:
    clock_hz = sm_clock_hz(device)
    if clock_hz is not None:
        measurements.counters[f"sm_clock_hz_{when}"] = clock_hz


def _agree_on_steps(options: Train, run: TrainingRun, group: Group, warmup_times_s: list[float]) -> list[int]:
    """The lengths of the measured windows, equal on all ranks: one, or one for every evaluation.

    Agreeing is also a barrier, so that the windows of all ranks begin together.
    """
    step_s = group.largest(typical_step_s(warmup_times_s), run.device)
    epoch_steps, steps = run.schedule.epoch_steps, run.schedule.steps
    if epoch_steps is None or steps is None:
        assert options.window is not None, "a launch without a number of steps requires a window"
        return [steps_in_window(options.window, step_s, options.min_steps)]
    if not options.eval:
        return [steps - len(warmup_times_s)]
    ends = range(epoch_steps, steps + 1, epoch_steps)
    return [max(0, min(epoch_steps, end - len(warmup_times_s))) for end in ends]


def _epoch_times(step_times_s: list[float], epoch_steps: int) -> list[float]:
    """Time of every epoch, including warm-up steps."""
    starts = range(0, len(step_times_s), epoch_steps)
    return [math.fsum(step_times_s[start : start + epoch_steps]) for start in starts]


def record_losses(measurements: Measurements, steps: StepWindow) -> None:
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
        if steps.warmup_losses:
            measurements.samples["warmup_loss"] = _values_of(steps.warmup_losses)


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
