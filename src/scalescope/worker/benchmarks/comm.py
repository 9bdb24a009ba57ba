"""The communication benchmark: every collective at every size, checked, and timed one by one."""

import statistics
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalescope.catalog.benchmarks.comm import DTYPE_BYTES, LEAST_PAIR_ITERATIONS, NCCL_LOG, Comm
from scalescope.catalog.collectives import collective_named
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import Phase, RankStage
from scalescope.worker.collectives import Operation, Shape, prepare
from scalescope.worker.machine.rates import clock_for
from scalescope.worker.process.faults import Fault
from scalescope.worker.process.group import Group
from scalescope.worker.process.node import node_name, rounds_of_pairs
from scalescope.worker.process.position import Position
from scalescope.worker.training.measurements import Measurements

_MOST_ITERATIONS = 500
_LEAST_ITERATIONS = 5
_LEAST_OF_LONG_ONES = 3  # if a single iteration takes longer than the time for a size
_LONGEST_ITERATION_S = 6.0  # 64 MiB over 100 Mbit; the launcher waits for twenty of them without progress
_NCCL_LOG_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
_BEATS = (Phase.BACKWARD, Phase.FORWARD)  # alternating: each iteration then shows as progress
_PAIR_SIZES = {"cpu": (1 << 16, 1 << 22), "cuda": (1 << 16, 1 << 26)}


@dataclass(frozen=True, kw_only=True)
class CommRun:
    """What all measurements of one launch need."""

    options: Comm
    group: Group
    device: torch.device
    position: Position
    fault: Fault | None
    measurements: Measurements


def measure(
    trial: Trial, group: Group, device: torch.device, position: Position, fault: Fault | None
) -> Measurements:
    """Raw times of every iteration, by collective, buffer placement and size."""
    options, measurements = trial.options(Comm), Measurements()
    run = CommRun(
        options=options,
        group=group,
        device=device,
        position=position,
        fault=fault,
        measurements=measurements,
    )
    position.enter(RankStage.STEADY, slowest_warmup_s=_LONGEST_ITERATION_S)
    if options.purpose == NCCL_LOG:
        _log_nccl_choices(run)
    elif options.pairs:
        _measure_pairs(run)
    else:
        for name in options.collectives():
            _measure_collective(run, name)
    return measurements


def _begin(run: CommRun) -> None:
    """Begin the next size or pair; the second mark separates ranks at work from one that never came."""
    run.position.begin_step()
    if run.fault is not None:
        run.fault.at_step(run.position.begun - 1)
    run.position.mark(Phase.FORWARD)


def _log_nccl_choices(run: CommRun) -> None:
    """One all-reduce per size, untimed: NCCL logs the algorithm and protocol it chooses for each."""
    for size in _NCCL_LOG_SIZES:
        run.position.begin_step()
        dist.all_reduce(torch.ones(size // 4, device=run.device))
    _finish(run.device)


def _measure_collective(run: CommRun, name: str) -> None:
    """All sizes of a collective, up to the first that takes too long."""
    options, card = run.options, collective_named(name)
    for size in options.sizes() if card.has_data else (0,):
        _begin(run)
        slowest_s = 0.0
        for in_place in card.in_place:
            if options.in_place in (None, in_place):
                slowest_s = max(slowest_s, _measure_size(run, name, size, in_place=in_place))
        run.position.completed += 1
        if options.longest_exchange is not None and slowest_s > options.longest_exchange:
            break


def _measure_size(run: CommRun, name: str, size: int, *, in_place: bool) -> float:
    """Check and time one size; returns the time of an iteration on the slowest rank after the warm-up."""
    options, group, device = run.options, run.group, run.device
    count = size // DTYPE_BYTES[options.dtype]
    if collective_named(name).shares_array:
        count -= count % group.world_size  # equal parts, as in nccl-tests; the key has the size that is left
    shape = Shape(
        rank=group.rank,
        ranks=group.world_size,
        count=count,
        dtype=getattr(torch, options.dtype),
        device=device,
        in_place=in_place,
    )
    if size and count == 0:
        return 0.0
    operation = prepare(name, shape)
    key = f"{name}/{'in' if in_place else 'out'}/{count * DTYPE_BYTES[options.dtype]}"
    operation.reset()
    operation.run()
    _finish(device)
    run.measurements.counters[f"{key}/wrong"] = operation.wrong()
    first_s = group.largest(_iterate(run, operation, 1)[0], device)
    warmup_s = _iterate(run, operation, _warmups(options, first_s))
    typical_s = group.largest(statistics.fmean(warmup_s), device)
    times_s = _iterate(run, operation, _iterations(options, typical_s))
    run.measurements.samples[key] = [round(time_s, 9) for time_s in times_s]
    return typical_s


def _iterate(run: CommRun, operation: Operation, count: int) -> list[float]:
    clock = clock_for(run.device, count)
    run.group.barrier()
    clock.start()
    for number in range(count):
        operation.run()
        clock.tick()
        run.position.mark(_BEATS[number % 2])
    clock.finish()
    return clock.step_times_s()


def _warmups(options: Comm, first_s: float) -> int:
    """Iterations before the measured ones; few on slow links."""
    return max(1, min(options.warmup, int(options.time_per_size / max(first_s, 1e-9)) // 2))


def _iterations(options: Comm, typical_s: float) -> int:
    """Iterations that fit into the time for a size, by the mean of the warm-up.

    The mean, because a small message may take a fraction of a millisecond or a tick of the scheduler: by the
    fastest one, hundreds would be planned that take seconds.
    """
    if options.iters is not None:
        return options.iters
    least = _LEAST_OF_LONG_ONES if typical_s > options.time_per_size else _LEAST_ITERATIONS
    return max(least, min(int(options.time_per_size / max(typical_s, 1e-9)), _MOST_ITERATIONS))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _measure_pairs(run: CommRun) -> None:
    """Both directions between the pairs of a round at once, while all other ranks wait."""
    group = run.group
    hosts = {group.rank: node_name(), **group.exchange("node", node_name())}
    for pairs in rounds_of_pairs([hosts[rank] for rank in range(group.world_size)]):
        _begin(run)
        for low, high in (pair for pair in pairs if group.rank in pair):
            other = high if group.rank == low else low
            for size in _PAIR_SIZES[run.device.type]:
                run.measurements.samples[f"pair/{low}-{high}/{size}"] = _time_pair(run, size, other)
        group.barrier()
        run.position.completed += 1


def _time_pair(run: CommRun, size: int, other: int) -> list[float]:
    sent = torch.ones(size // 4, device=run.device)
    received = torch.empty_like(sent)
    # The first one opens the connection.
    count = 1 + max(run.options.iters or 0, LEAST_PAIR_ITERATIONS)
    clock = clock_for(run.device, count)
    clock.start()
    for _ in range(count):
        # Receive first, as in `sendrecv`: otherwise the two directions take turns on gloo.
        transfers = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, sent, other)]
        for transfer in dist.batch_isend_irecv(transfers):
            transfer.wait()
        clock.tick()
    clock.finish()
    return [round(time_s, 9) for time_s in clock.step_times_s()][1:]
