"""CPU threads per rank in words: what a speed on the CPU rests on, beside every baseline."""

from collections.abc import Iterable

from scalescope.analysis.configurations import Configuration
from scalescope.report.numbers import counted


def threads_of(configuration: Configuration) -> int | None:
    """The threads that torch had on each rank; as asked for where ranks did not record them. None where they
    do not matter, on a GPU, or nobody knows them."""
    trial = configuration.trial
    if trial.on_gpu:
        return None
    recorded = configuration.launches[0].threads_per_rank
    asked = None if trial.keeps_running else trial.threads_per_rank
    return asked if recorded is None else recorded


def threads_text(measured: Iterable[Configuration]) -> str:
    """`1 thread per rank`; nothing where configurations differ in it, or it is not known."""
    threads = {threads_of(configuration) for configuration in measured}
    known = threads.pop() if len(threads) == 1 else None
    return "" if known is None else f"{counted(known, 'thread')} per rank"


def threads_differ(measured: Iterable[Configuration]) -> tuple[str, ...]:
    """`1 rank had 2 threads, 2 ranks 1 each.` where speeds that are compared rest on different threads."""
    known = dict.fromkeys((config.trial.world_size, threads_of(config)) for config in measured)
    if len({threads for _, threads in known}) < 2:
        return ()
    (ranks, first), *others = known
    words = [f"{counted(ranks, 'rank')} had {_threads(first)}{_each(ranks)}"]
    words += [
        f"{counted(ranks, 'rank')} {'unknown' if threads is None else threads}{_each(ranks)}"
        for ranks, threads in others
    ]
    return (f"{', '.join(words)}.",)


def _threads(count: int | None) -> str:
    return "unknown threads" if count is None else counted(count, "thread")


def _each(ranks: int) -> str:
    return " each" if ranks > 1 else ""
