"""Phases: what explains a job, measured in the same start of it after its own window."""

from dataclasses import dataclass

from scalescope.experiment.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Another trial of a job that the same processes can measure."""

    trial: Trial
    needs_loader: bool | None = None  # only where the script has a DataLoader, or only where it has none
    once: bool = False  # in the first launch alone
