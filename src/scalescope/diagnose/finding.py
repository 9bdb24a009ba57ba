"""Finding: a claim about a run, with what it stands on and what to do about it."""

import shlex
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A number that a claim stands on, in SI units, and where it comes from."""

    name: str
    value: float | str
    unit: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something to change: with a command of ours that shows whether it helps, or a line of code."""

    label: str
    argv: tuple[str, ...] = ()  # empty where the label says which line to change
    changes_job: bool = False  # it trains something else, such as another batch size: not a free speed-up
    setting: str | None = None  # that it moves
    predicted_gain: float | None = None  # in samples per second, relative; None where it is not known

    @property
    def command(self) -> str:
        """What to type into a shell."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, how much it costs, why we think so, and what to do first."""

    rule: str
    claim: str
    lost: float  # ranks' worth of speed; what is not measured in them counts as 0
    share: float  # of the speed that all ranks should deliver
    cost_s: float | None = None  # of a step; None where it was not measured in time
    estimated: bool = False  # the cost is calculated from a trace, and no run without the cause confirmed it
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    about: str = ""  # the configuration, where a run has several
    trial_id: str = ""  # of that configuration; empty where it is about the whole run
    terms: tuple[str, ...] = ()  # of the waterfall, that it explains; the claim stands on the first
    is_counted: bool = False  # what it costs is part of what a finding above it costs
    counted_s: float = 0.0  # of what it costs alone, what findings above it have counted already
    certain: bool = True  # False where the first term's interval includes none at all
    single: bool = False  # where it stands on one launch, which has no interval
    root: bool = False  # where two cost the same, the cause comes first
    leads: bool = False  # it stands before all others: while it lasts, they cannot be trusted
    symptom: bool = False  # what causes it stands before it, whatever it costs

    @property
    def severity(self) -> Severity:
        return "high" if self.share > 0.2 else "medium" if self.share > 0.05 else "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """A rule that cannot decide, and the measurement that would."""

    rule: str
    missing: str
    argv: tuple[str, ...] = ()  # the command that measures it
    error: str = ""  # what the rule raised, where it failed

    @property
    def command(self) -> str:
        """What to type into a shell; empty where there is no such command."""
        return shlex.join(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, the most expensive first, and the rules that could not decide."""

    findings: tuple[Finding, ...] = ()
    abstentions: tuple[Abstention, ...] = field(default_factory=tuple)
