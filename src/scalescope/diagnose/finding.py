"""Finding: a claim about a run, with what it stands on and what to do about it."""

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
    """Something to change, with a command of ours that shows whether it helps."""

    label: str
    command: str
    changes_job: bool = False  # it trains something else, such as another batch size: not a free speed-up


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, how much it costs, why we think so, and what to do first."""

    rule: str
    claim: str
    lost: float  # ranks' worth of speed; what is not measured in them counts as 0
    share: float  # of the speed that all ranks should deliver
    evidence: tuple[Evidence, ...] = ()
    advice: tuple[Advice, ...] = ()
    about: str = ""  # the configuration, where a run has several
    term: str = ""  # of the waterfall, on which the claim stands
    certain: bool = True  # False where that term's interval includes none at all
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
    command: str = ""
    error: str = ""  # what the rule raised, where it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, the most expensive first, and the rules that could not decide."""

    findings: tuple[Finding, ...] = ()
    abstentions: tuple[Abstention, ...] = field(default_factory=tuple)
