"""The batch of a job in words, in the unit in which it is counted."""

from scalescope.analysis.configurations import TOKENS
from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.setting import settings_of
from scalescope.catalog.workloads.command import Command
from scalescope.experiment.trial import Trial

# Settings that launches of a command fill in: facts, by which nothing was varied.
OBSERVED = frozenset(setting.name for setting in settings_of(Command) if setting.internal)


def batch_text(trial: Trial, samples: int | None = None) -> str:
    """`batch 32`; of a command that counts tokens `16,384 tokens`, and where its batch is unknown that it is.

    `samples` stand for the batch as it was given, where another way to count is wanted.
    """
    count = trial.given_batch_size if samples is None else samples
    if not trial.has_known_batch:
        return "unknown batch"
    return f"{count:,} tokens" if counts_tokens(trial) else f"batch {count:,}"


def can_set_batch(trial: Trial) -> bool:
    """Whether the batch is a setting: of a command only where it has a placeholder for it."""
    options = trial.options(Train)
    return not trial.is_command or options.batch_size is not None or options.global_batch_size is not None


def counts_tokens(trial: Trial) -> bool:
    """Whether the samples of a trial are the tokens that a command's model receives."""
    return trial.is_command and trial.options(Command).observed_unit == TOKENS
