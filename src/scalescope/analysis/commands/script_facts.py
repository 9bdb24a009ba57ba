"""Script facts: how the steps and samples of a training command were counted, and what was changed in it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scalescope.experiment.observed import replicas_of
from scalescope.experiment.trial import Trial
from scalescope.results.ranks.attach_job import OBSERVED, OWN_START, REMAINING, SUPPRESSED, WRITTEN
from scalescope.results.result import RankRecord, Result

OPTIMIZER_STEPS = "optimizer steps"  # how a rank says that it counts these


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """What the launches of one command showed; None is unknown."""

    trial: Trial  # of the most ranks
    step_from: str | None = None  # what counts as a step
    optimizers: str | None = None
    events_per_step: int | None = None  # optimizer steps that make a step
    micro_batches: int | None = None  # forward passes of a step
    samples_from: str | None = None  # where their number comes from
    shares_unknown: bool = False  # which ranks share a batch
    skipped_steps: int = 0  # that a GradScaler left out, in the launch with most of them
    suppressed: Mapping[str, int] = field(default_factory=dict)  # calls left out, most of any launch
    written_files: int = 0  # to the private view, in the launch with most of them
    written_bytes: int = 0
    own_starts: Mapping[str, str] = field(default_factory=dict)  # what got a launch of its own, and why
    remaining: tuple[str, ...] = ()  # what still communicates in launches without communication

    @property
    def command(self) -> str:
        return self.trial.command

    @property
    def counts_optimizer_steps(self) -> bool:
        return self.step_from == OPTIMIZER_STEPS


def script_facts(results: Iterable[Result]) -> tuple[ScriptFacts, ...]:
    """The facts of every command among launches that ended well."""
    commands: dict[str, list[Result]] = {}
    for result in results:
        if result.status == "ok" and result.ranks and result.trial.is_command:
            commands.setdefault(result.trial.command, []).append(result)
    return tuple(map(_facts, commands.values()))


def _facts(launches: list[Result]) -> ScriptFacts:
    timed = [launch for launch in launches if launch.trial.is_training] or launches
    normal = [launch for launch in timed if not launch.trial.is_ablation] or timed
    largest = max(normal, key=lambda launch: launch.trial.world_size)
    first = largest.ranks[0]
    return ScriptFacts(
        trial=largest.trial,
        step_from=_text(first, "step_from"),
        optimizers=_text(first, "optimizers"),
        events_per_step=first.whole(f"{OBSERVED}events_per_step"),
        micro_batches=first.whole(f"{OBSERVED}micro_batches"),
        samples_from=_text(first, "samples_from"),
        shares_unknown=replicas_of([record.counters for record in largest.ranks]) is None,
        skipped_steps=max(
            record.whole(f"{OBSERVED}skipped_steps") or 0 for launch in launches for record in launch.ranks
        ),
        suppressed=_suppressed(launches),
        written_files=_most_written(launches, "files"),
        written_bytes=_most_written(launches, "bytes"),
        own_starts={
            name.removeprefix(OWN_START): str(reason)
            for launch in launches
            for name, reason in launch.ranks[0].counters.items()
            if name.startswith(OWN_START)
        },
        remaining=_remaining(launches),
    )


def _suppressed(launches: list[Result]) -> dict[str, int]:
    most: Counter[str] = Counter()
    for launch in launches:
        calls: Counter[str] = Counter()
        for record in launch.ranks:
            for name, value in record.counters.items():
                if name.startswith(SUPPRESSED) and isinstance(value, int | float):
                    calls[name.removeprefix(SUPPRESSED)] += int(value)
        most |= calls
    return dict(sorted(most.items()))


def _most_written(launches: list[Result], name: str) -> int:
    return max(record.whole(f"{WRITTEN}{name}") or 0 for launch in launches for record in launch.ranks)


def _remaining(launches: list[Result]) -> tuple[str, ...]:
    rows = [
        str(row["what"])
        for launch in launches
        for record in launch.ranks
        for row in record.tables.get(REMAINING, ())
        if row.get("what")
    ]
    return tuple(dict.fromkeys(rows))


def _text(record: RankRecord, name: str) -> str | None:
    value = record.counters.get(f"{OBSERVED}{name}")
    return str(value) if value else None
