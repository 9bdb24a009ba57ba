"""What a person asked of a measuring verb, before the machine is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.experiment.experiment import Experiment, build_experiment
from scalescope.experiment.yaml_file import Entries, read_experiment_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Flags, the experiment file and the switches that every measuring verb has."""

    verb: str
    benchmark: str = "train"
    file: Path | None = None
    flags: Entries = field(default_factory=dict)
    words: tuple[str, ...] = ()  # flags of the verb alone, needed to repeat the run
    resume: bool = False
    dry_run: bool = False
    strict: bool = False
    yes: bool = False

    def experiment(self, defaults: Mapping[str, Any]) -> Experiment:
        """The checked request; `defaults` are the verb's own for the run's options."""
        file = read_experiment_file(self.file) if self.file else {}
        return build_experiment(self.verb, self.benchmark, file, self.flags, defaults)
