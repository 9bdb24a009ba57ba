"""Recompilation: torch.compile compiles while steps are timed, because arguments are new to it."""

from pathlib import PurePath

from scalescope.analysis.training.activity import CompilerCalls
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts

RULE = "recompilation"
_MOST_SHOWN = 5


def rule(facts: StepFacts) -> Finding | Abstention | None:
    known = [activity.compiler for activity in facts.activities if activity.compiler is not None]
    if not known:
        return None
    worst = max(known, key=lambda calls: calls.inside_s)
    if not facts.is_worth(worst.inside_s):
        return None
    return facts.finding(
        RULE,
        f"torch.compile compiled {worst.compilations_inside} times during the measured steps: "
        f"{worst.inside_s * 1e3:.1f} ms per step{_reason(worst)}.",
        worst.inside_s,
        root=True,
        evidence=(
            Evidence(name="compiling per step", value=worst.inside_s, unit="s", source="torch.compile"),
            Evidence(name="recompilations before", value=worst.recompilations_before, source="torch.compile"),
            Evidence(
                name="recompilations in the window",
                value=worst.recompilations_inside,
                source="torch.compile",
            ),
            *(
                Evidence(name=each.location, value=each.reason, source="torch.compile")
                for each in worst.recompilations[:_MOST_SHOWN]
                if each.in_window
            ),
        ),
        advice=(
            Advice(label="give the model batches of one shape: pad to a fixed length, drop the last batch"),
            Advice(label="use torch.compile(dynamic=True), or torch._dynamo.mark_dynamic for what varies"),
        ),
    )


def _reason(calls: CompilerCalls) -> str:
    """Of the longest recompilation among them."""
    for each in calls.recompilations:
        if each.in_window and each.reason:
            line = f"{PurePath(each.file).name}:{each.line}"
            return f". {each.function} at {line} was compiled again ({each.reason})"
    return ""
