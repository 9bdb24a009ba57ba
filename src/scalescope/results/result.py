"""Result: what one launch of one trial gave, in plain types that ranks can write without pydantic."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from scalescope.experiment.trial import Trial
from scalescope.results.other_load import OtherLoad

SCHEMA_VERSION = "2.0"
Status = Literal["ok", "failed", "hang", "oom", "invalid", "interrupted"]
StoppedBy = Literal["signal", "budget"]
StageKind = Literal["baseline", "facts", "explore", "refine", "confirm", "scaling", "loss"]
_STRICT = {"allow_inf_nan": False}


# When a rank's measured window began and ended, on the host's monotonic clock.
WINDOW = ("window_began_monotonic_s", "window_ended_monotonic_s")
# The parts of a step whose time the host measures.
HOST_PARTS = ("input", "forward", "backward", "optimizer")
LARGEST_PARAMETERS = "largest_parameters"  # a table: name, bytes, rows and the share of rows that changed
EVENTS = "events"  # a table of what a rank noted of a script beside its steps: step, kind and time_s
EVALUATION, CHECKPOINT, LOGGING = "evaluation", "checkpoint", "logging"
WHOLE_PARTS = HOST_PARTS[
    :1
]  # of a step that contains the other parts, which the host's clock cannot separate
# In a rank's profile: 1 where the host had queued the work of profiled steps beforehand.
AT_GPU_PACE = "profile/at_gpu_pace"
FIRST_REPEAT = 10_000  # the number of launches that repeat disturbed ones: no plan has this many rounds
ROOT_UNIT = "(root)"  # what no unit of the model holds: it follows from the whole


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of a search that a launch belongs to, and what it was compared with."""

    kind: StageKind
    attempt: int = 0  # which of that kind
    base: str | None = None  # the trial that a lever was added to, or that is confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """Raw samples of one rank; statistics are derived from them, never stored in their place."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    rank: int
    host: str
    device: str
    placement: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, float | int | str | None] = field(default_factory=dict)
    # Rows of facts by name, such as the lines of code that wait for the GPU.
    tables: dict[str, list[dict[str, float | int | str | None]]] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """A counter; None where it is missing or is not a number."""
        return number_in(self.counters, name)

    def whole(self, name: str) -> int | None:
        value = self.counters.get(name)
        return int(value) if isinstance(value, int | float) else None

    @property
    def bucket_bytes(self) -> tuple[int, ...] | None:
        """The sizes of the gradient buckets, first to last; None where they are not known."""
        return tuple(map(int, self.samples.get("bucket_bytes", ()))) or None


def number_in(row: Mapping[str, float | int | str | None], name: str) -> float | None:
    """A number of a record's counters or of a row of its tables; None where it is missing or is not one."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of trials.jsonl; on failure it says why, which rank and at which step."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    schema_version: str = SCHEMA_VERSION
    trial_id: str
    launch: int
    stage: Stage | None = None  # of a search; None where launches are plain repeats
    order: int
    status: Status
    reason: str | None = None
    stopped_by: StoppedBy | None = None  # of a launch that was interrupted
    rank: int | None = None
    step: int | None = None
    log: str | None = None
    settings: dict[str, Any]
    started_at: str
    duration_s: float
    environment_id: str
    ranks: list[RankRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    telemetry: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """What makes a launch unique in a run: the trial and the number of its launch."""
        return self.trial_id, self.launch

    @property
    def other_load(self) -> OtherLoad:
        """What other processes used while this launch measured."""
        return OtherLoad.from_json(self.telemetry.get("load"))

    @property
    def is_disturbed(self) -> bool:
        """Whether others used what this launch needed; it then does not show the machine's own speed."""
        return self.status == "ok" and self.other_load.disturbs

    @property
    def trial(self) -> Trial:
        """What was launched, with typed properties."""
        return Trial(settings=self.settings)


def to_json(record: RankRecord | Result) -> dict[str, Any]:
    """The record as plain JSON values; samples are not copied: a thousand ranks have millions of them."""
    return {part.name: _to_plain(getattr(record, part.name)) for part in dataclasses.fields(record)}


def _to_plain(value: Any) -> Any:
    if isinstance(value, RankRecord):
        return to_json(value)
    if isinstance(value, Stage):
        return dataclasses.asdict(value)
    return [_to_plain(member) for member in value] if isinstance(value, list) else value


def results_by_trial(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The launches of each trial."""
    by_trial: dict[str, list[Result]] = {}
    for result in results:
        by_trial.setdefault(result.trial_id, []).append(result)
    return by_trial


def undisturbed(results: Iterable[Result]) -> list[Result]:
    """The launches that estimates are made of: of every trial those that nothing disturbed, or else all."""
    return [
        result
        for members in results_by_trial(results).values()
        for result in [member for member in members if not member.is_disturbed] or members
    ]
