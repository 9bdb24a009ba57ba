"""The batch of a job in words; a training command counts it in its own unit, and may not take another."""

from scalescope.analysis.configurations import TOKENS
from scalescope.catalog.benchmarks.train import Train
from scalescope.catalog.cards import card
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import Trial

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
