"""What is known of a training command: batch, wrapper, loader, and whether several ranks can run it."""

import ast
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalescope.analysis.configurations import TOKENS
from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.cards import card
from scalescope.catalog.setting import settings_of
from scalescope.experiment.observed import replicas_of
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import OBSERVED, OWN_START, REMAINING, SUPPRESSED, WRITTEN
from scalescope.results.result import RankRecord, Result
from scalescope.results.stored.files import read_bytes

# ---- The batch of a job in words; a training command counts it in its own unit, and may not take another


# Settings that launches of a command fill in: facts, by which nothing was varied.
OBSERVED_SETTINGS = frozenset(
    setting.name for setting in settings_of(card("workloads", "command")) if setting.internal
)


def batch_text(trial: Trial, samples: int | None = None) -> str:
    """`batch 32`; of a command that counts tokens `16,384 tokens`, and where its batch is unknown that it is.

    `samples` stand for the batch as it was given, where another way to count is wanted.
    """
    if not trial.has_known_batch:
        return "unknown batch"
    count = trial.given_batch_size if samples is None else samples
    return f"{count:,} tokens" if counts_tokens(trial) else f"batch {count:,}"


def can_set_batch(trial: Trial) -> bool:
    """Whether the batch is a setting: of a command only where it has a placeholder for it."""
    options = trial.options(Train)
    return not trial.is_command or options.batch_size is not None or options.global_batch_size is not None


def counts_tokens(trial: Trial) -> bool:
    """Whether the batch of a trial is the tokens that a command's model receives in a step."""
    if not trial.is_command or can_set_batch(trial):
        return False
    return bool(trial.options(trial.workload_card).observed_unit == TOKENS)


# ---- Script facts: how the steps and samples of a training command were counted, and what was changed in it


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
    """The facts of every command among the successful launches."""
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


# ---- Whether a training script can run on several ranks, by its text: it is read, and never executed


_MOST_FILES = 30  # the script and the modules beside it that it imports
_MOST_BYTES = 1 << 20  # of each
# What joins a process group, or has somebody join one: any of these is enough.
_NAMES = (
    *("init_process_group", "init_device_mesh", "DistributedDataParallel", "FullyShardedDataParallel"),
    *("fully_shard", "Accelerator", "Fabric"),
)
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_PACKAGES = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod", "composer", "torchtitan")
_TRAINER = "Trainer"  # of transformers, trl, lightning: it joins the process group for the script
_SPAWNS = "spawn"  # of torch.multiprocessing
_OWN_LOOP = "backward"  # whoever calls it has a training loop of its own


def script_of(words: Sequence[str], folder: Path) -> Path | None:
    """The Python file that a command runs, from the folder it is started in; None where it is not known."""
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word.endswith(".py"):
            return folder / word
        if word == "-m" and not following.startswith("torch."):  # which is torchrun
            return _file_of(following, folder)
    return None


def obstacle(words: Sequence[str], folder: Path) -> str | None:
    """Why torchrun cannot start several ranks of a command, as a clause; None where it may.

    Only a script with a training loop of its own can be said to lack something: of others nothing is known.
    """
    script = script_of(words, folder)
    trees = [] if script is None else list(_trees(script))
    if script is None or None in trees:
        return None
    names = {name for tree in trees if tree is not None for name in _names(tree)}
    if _SPAWNS in names:
        return (
            f"{script.name} starts its ranks itself: write {{world_size}} where it takes the number of ranks"
        )
    joins = names & {*_NAMES, *_VARIABLES, *_PACKAGES} or any(name.endswith(_TRAINER) for name in names)
    if joins or _OWN_LOOP not in names:
        return None
    return (
        f"{script.name} does not call torch.distributed.init_process_group, so several ranks would "
        "train independently"
    )


def _trees(script: Path) -> Iterator[ast.Module | None]:
    """The script and the modules beside it that it imports; None for what cannot be read, or is too much."""
    waiting, seen = [script], {script}
    while waiting:
        tree = _parsed(waiting.pop(0)) if len(seen) <= _MOST_FILES else None
        yield tree
        imported = set() if tree is None else set(_imported(tree))
        files = {path for name in imported if (path := _file_of(name, script.parent)) is not None}
        waiting += sorted(files - seen)
        seen |= files


def _parsed(file: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # about the script's own text
            return ast.parse(read_bytes(file, _MOST_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(module: str, folder: Path) -> Path | None:
    """The file of a module below a folder."""
    base = folder.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__main__.py", base / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _names(tree: ast.Module) -> Iterator[str]:
    """What a script names: functions and attributes, what it imports, and its texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield from (node.name.split(".")[0], node.name.split(".")[-1])
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
