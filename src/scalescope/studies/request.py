"""What a person asked of a measuring verb, before the machine is known."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.catalog.slurm import JOB_KEYS, SHELL_TEXT
from scalescope.errors import BadInput
from scalescope.experiment.experiment import Experiment, build_experiment
from scalescope.experiment.given import Entries, Given
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.results.run_folder import DEFAULT_ROOT, EXPERIMENT, JOB_REQUEST
from scalescope.results.run_record import newest_unfinished_run

if TYPE_CHECKING:
    from scalescope.studies.study import Study

_SAYS_NOTHING_TO_RUN = {"output_dir", "budget", "repeats"}


def split_slurm_flags(entries: Entries) -> tuple[Entries, Entries]:
    """What is asked of the measurement, and what is asked of SLURM."""
    mine = {name: values for name, values in entries.items() if name not in JOB_KEYS}
    return mine, {name: values for name, values in entries.items() if name in JOB_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Flags, the experiment file and the switches that every measuring verb has."""

    verb: str
    benchmark: str = "train"
    file: Path | None = None
    flags: Entries = field(default_factory=dict)
    resume: bool = False
    dry_run: bool = False
    strict: bool = False
    yes: bool = False
    trust: bool = False  # stored commands and shell text of the run to be continued may be run
    only_launches: tuple[int, ...] | None = None  # of a run that several commands share
    only_next: bool = False  # such a run's next launch, of a study that decides by results which it is
    started_s: float | None = (
        None  # when the command began, on the monotonic clock: its budget counts from it
    )
    budget_since: str | None = None  # the budget of such a run is for launches that started later
    own_keys: frozenset[str] = frozenset()  # of the file: flags of the verb, which are not settings

    @property
    def is_shared(self) -> bool:
        """Whether several commands make the launches of the run, each with ranks of its own."""
        return self.only_next or self.only_launches is not None

    def with_run_to_resume(self) -> "Request":
        """The request with the folder that --resume continues, by default the newest unfinished run."""
        if not self.resume or "output_dir" in {**self.flags, **self._written()}:
            return self
        path = newest_unfinished_run(self.verb, DEFAULT_ROOT)
        if path is None:
            raise BadInput(
                f"--resume: no unfinished run of {self.verb} exists under {DEFAULT_ROOT}/; "
                "give a folder with --output-dir"
            )
        return dataclasses.replace(self, flags={**self.flags, "output_dir": (Given(str(path), "--resume"),)})

    @property
    def takes_stored_request(self) -> bool:
        """Whether the run to be continued says what is run, and not the user."""
        typed = self.file is not None and not self.is_stored_file
        return self.resume and not typed and not set(self.flags) - _SAYS_NOTHING_TO_RUN

    @property
    def is_stored_file(self) -> bool:
        """Whether the experiment file is that of the run to be continued."""
        given = self.flags.get("output_dir")
        if not self.resume or not given or self.file is None:
            return False
        return self.file.resolve().is_relative_to(Path(given[0].text).resolve())

    def _begun(self) -> Path | None:
        """The request to go on with: --resume alone takes up what the folder was asked for.

        A job is submitted again by what was asked of it; what its steps made of that depends on their nodes.
        """
        given = self.flags.get("output_dir")
        if not self.resume or not given or set(self.flags) - {"output_dir"}:
            return None
        files = (Path(given[0].text) / name for name in (JOB_REQUEST, EXPERIMENT))
        return next((file for file in files if file.is_file()), None)

    def _written(self) -> Entries:
        """What the experiment file asks for, and the run to be continued where nothing else is given."""
        path = self.file or self._begun()
        return read_experiment_file(path) if path else {}

    def experiment(self, defaults: Mapping[str, Any]) -> Experiment:
        """The checked request; `defaults` are the verb's own for the run's options."""
        written, _ = split_slurm_flags(self._written())
        file = {name: values for name, values in written.items() if name not in self.own_keys}
        return build_experiment(self.verb, self.benchmark, file, self.flags, defaults)

    def of_job(self) -> Entries:
        """What the experiment file asks of SLURM; a run that is not a job goes without.

        The request of a stored run holds no shell text: what a job runs besides is in its job.json.
        """
        asked = split_slurm_flags(read_experiment_file(self.file))[1] if self.file else {}
        left_out = SHELL_TEXT if self.is_stored_file else ()
        return {name: values for name, values in asked.items() if name not in left_out}


def stored_experiment(study: "Study", path: Path) -> Experiment:
    """What a stored request asks for."""
    return Request(verb=study.verb, benchmark=study.benchmark, file=path).experiment(study.defaults)
