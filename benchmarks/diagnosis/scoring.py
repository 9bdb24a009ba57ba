"""Verdicts about cases: the first finding against the injected cause, and what the largest term says."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from diagnosis.cases import HEALTHY, Case
from scalescope.analysis.scaling import waterfall as scaling
from scalescope.analysis.training import step_waterfall as step
from scalescope.diagnose.diagnosis import diagnose
from scalescope.diagnose.facts import facts_of
from scalescope.diagnose.run_rules.other_load import OTHER_LOAD as OTHER_LOAD
from scalescope.diagnose.step_facts import step_facts_of
from scalescope.results.run import Run

MATTERS = 0.05  # of the speed: what costs less is not a cause

# "Largest term wins": the cause that each term of a waterfall suggests by its name.
CAUSE_OF_SCALING_TERM = {
    scaling.COMMUNICATION: "slow link",
    scaling.STRAGGLERS: "slow rank",
    scaling.WAITING: "slow rank",
    scaling.RANDOM_SKEW: "jitter",
    scaling.CONTENTION: "too many threads",
    scaling.INPUT: "slow loader",
    scaling.IDLE_INPUT: "slow loader",
    scaling.SMALLER_BATCH: "tiny batch",
    scaling.WRAPPER: "tiny model",
}
# Forward and backward are the work itself, and no loss.
CAUSE_OF_STEP_TERM = {
    step.INPUT: "slow loader",
    step.IDLE_INPUT: "slow loader",
    step.OPTIMIZER: "unfused optimizer",
    step.REST: "periodic pauses",
}


@dataclass(frozen=True)
class Verdict:
    """The first finding of the diagnosis, whether it names the cause, and what the baseline says."""

    case: Case
    top: str
    costs: tuple[tuple[str, float], ...]  # of all findings, as shares of the speed
    by_largest_term: str  # a cause

    @property
    def is_right(self) -> bool:
        return self.top in self.case.expected

    @property
    def baseline_is_right(self) -> bool:
        return self.by_largest_term == self.case.cause

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes slowed the ranks down: such a run shows nothing about its cause."""
        return any(rule == OTHER_LOAD and share > MATTERS for rule, share in self.costs)

    def line(self) -> str:
        costs = ", ".join(f"{rule} {share:.2f}" for rule, share in self.costs[:3])
        mark = "~~" if self.is_disturbed else "ok" if self.is_right else "NO"
        return f"{mark}  {self.case.name}: {self.top} ({costs})"

    def record(self) -> dict[str, object]:
        return {
            "case": self.case.name,
            "cause": self.case.cause,
            "ranks": self.case.ranks,
            "set": "held out" if self.case.is_held_out else "development",
            "expected": self.case.expected,
            "top": self.top,
            "right": self.is_right,
            "disturbed": self.is_disturbed,
            "costs": self.costs,
            "largest_term": self.by_largest_term,
            "largest_term_right": self.baseline_is_right,
        }


def judge(case: Case, run: Run) -> Verdict:
    """Blind: the first finding that costs more than 5 %, or none."""
    costs = tuple((finding.rule, finding.share) for finding in diagnose(run).findings if finding.share > 0.0)
    top = next((rule for rule, share in costs if share > MATTERS), HEALTHY)
    return Verdict(case, top, costs, largest_term(run))


def largest_term(run: Run) -> str:
    """The cause by the largest term: of the scaling waterfall on several ranks, else of the step's."""
    losses = [
        (term.lost.value / facts.ranks, CAUSE_OF_SCALING_TERM.get(term.name, term.name))
        for facts in facts_of(run)[:1]
        if facts.waterfall is not None
        for term in facts.waterfall.terms
        if term.lost is not None
    ]
    if not losses:
        losses = [
            (term.time_s.value / facts.waterfall.step_s, CAUSE_OF_STEP_TERM[term.name])
            for facts in step_facts_of(run)[:1]
            if facts.waterfall is not None
            for term in facts.waterfall.terms
            if term.name in CAUSE_OF_STEP_TERM
        ]
    share, cause = max(losses, default=(0.0, HEALTHY))
    return cause if share > MATTERS else HEALTHY


def score_table(verdicts: Sequence[Verdict], cases: Sequence[Case]) -> str:
    """Right of all that was not disturbed, beside the baseline, for each set."""
    head = ("set", "right", "false alarms of healthy runs", "largest term wins", "its false alarms")
    lines = [f"| {' | '.join((*head, 'disturbed', 'missing'))} |", "|---|---|---|---|---|---|---|"]
    for name, is_held_out in (("development", False), ("held out", True)):
        of_set = [verdict for verdict in verdicts if verdict.case.is_held_out == is_held_out]
        members = [verdict for verdict in of_set if not verdict.is_disturbed]
        planned = sum(case.is_held_out == is_held_out for case in cases)
        if not planned:
            continue
        healthy = [verdict for verdict in members if verdict.case.cause == HEALTHY]
        cells = (
            name,
            of_all(sum(verdict.is_right for verdict in members), len(members)),
            f"{sum(not verdict.is_right for verdict in healthy)} of {len(healthy)}",
            of_all(sum(verdict.baseline_is_right for verdict in members), len(members)),
            f"{sum(not verdict.baseline_is_right for verdict in healthy)} of {len(healthy)}",
            f"{len(of_set) - len(members)}",
            f"{planned - len(of_set)} of {planned}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cause_table(verdicts: Sequence[Verdict]) -> str:
    """Recall and precision of every cause, and what was reported instead."""
    lines = [
        "| cause | right | precision | reported instead | largest term wins |",
        "|---|---|---|---|---|",
    ]
    for cause in dict.fromkeys(verdict.case.cause for verdict in verdicts):
        members = [verdict for verdict in verdicts if verdict.case.cause == cause]
        reported = [verdict for verdict in verdicts if verdict.top in members[0].case.expected]
        fair = sum(verdict.is_right for verdict in reported)  # two causes may share a finding
        others = Counter(verdict.top for verdict in members if not verdict.is_right)
        instead = ", ".join(f"{top} ({count})" for top, count in others.most_common())
        cells = (
            cause,
            f"{sum(verdict.is_right for verdict in members)} of {len(members)}",
            f"{fair} of {len(reported)}" if reported else "never reported",
            instead,
            f"{sum(verdict.baseline_is_right for verdict in members)} of {len(members)}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rank_table(verdicts: Sequence[Verdict]) -> str:
    """Right by number of ranks."""
    lines = ["| ranks | right | largest term wins |", "|---|---|---|"]
    for ranks in sorted({verdict.case.ranks for verdict in verdicts}):
        members = [verdict for verdict in verdicts if verdict.case.ranks == ranks]
        right = of_all(sum(verdict.is_right for verdict in members), len(members))
        baseline = of_all(sum(verdict.baseline_is_right for verdict in members), len(members))
        lines.append(f"| {ranks} | {right} | {baseline} |")
    return "\n".join(lines)


def of_all(right: int, total: int) -> str:
    return f"{right} of {total} ({right / total:.0%})" if total else "none"
