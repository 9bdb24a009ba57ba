"""Rules about torch.compile: graph breaks and recompilation."""

from pathlib import PurePath

from scalescope.analysis.training.activity import CompilerCalls, GraphBreak
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts
from scalescope.quantities import counted, in_ms

# ---- Graph breaks: torch.compile ends a graph at lines it cannot compile, and Python runs in between


GRAPH_BREAKS = "graph breaks"
_BREAK_S = 100e-6  # of the host, to leave a graph and enter the next: an order of magnitude
_MOST_SHOWN = 5


def graph_breaks_rule(facts: StepFacts) -> Finding | Abstention | None:
    breaks = max((_breaks(activity.compiler) for activity in facts.activities), key=len, default=())
    if not breaks:
        return None
    cost_s = _cost_s(facts, len(breaks))
    first = breaks[0]
    lines = "1 line" if len(breaks) == 1 else f"{len(breaks)} lines"
    return facts.finding(
        GRAPH_BREAKS,
        f"torch.compile ends its graph at {lines} of the model, the first at {_short(first)} "
        f"({first.reason}). Kernels are not fused across it, and Python runs in between.",
        cost_s,
        estimated=cost_s is not None,
        terms=HOST_TERMS,
        evidence=tuple(
            Evidence(name=each.location, value=each.reason, source="graph breaks of torch.compile")
            for each in breaks[:_MOST_SHOWN]
        ),
        advice=(Advice(label=f"make {_short(first)} compilable; fullgraph=True shows the next"),),
    )


def _breaks(compiler: CompilerCalls | None) -> tuple[GraphBreak, ...]:
    """At lines outside torch."""
    breaks = () if compiler is None else compiler.graph_breaks
    return tuple(each for each in breaks if each.file)


def _short(graph_break: GraphBreak) -> str:
    return f"{PurePath(graph_break.file).name}:{graph_break.line}"


def _cost_s(facts: StepFacts, breaks: int) -> float | None:
    """At most as long as the GPU waits for the host; None where that is unknown."""
    replay = facts.replay
    return None if replay is None else facts.bounded(min(breaks * _BREAK_S, replay.host_cost_s), *HOST_TERMS)


# ---- Recompilation: torch.compile compiles while steps are timed, because arguments are new to it


RECOMPILATION = "recompilation"


def recompilation_rule(facts: StepFacts) -> Finding | Abstention | None:
    known = [activity.compiler for activity in facts.activities if activity.compiler is not None]
    if not known:
        return None
    worst = max(known, key=lambda calls: (calls.inside_s, calls.given_up))
    if not facts.is_worth(worst.inside_s) and not worst.given_up:
        return None
    cost_s = max(worst.inside_s, uncompiled_cost_s(facts))
    return facts.finding(
        RECOMPILATION,
        _claim(worst),
        cost_s,
        root=True,
        estimated=cost_s > worst.inside_s,
        terms=HOST_TERMS if facts.trial.on_gpu else (),
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
                if each.location
            ),
        ),
        advice=(
            Advice(label="give the model batches of one shape: pad to a fixed length, drop the last batch"),
            Advice(
                label="use torch.compile(dynamic=True), or torch._dynamo.mark_dynamic for dimensions that "
                "vary"
            ),
        ),
    )


def uncompiled_cost_s(facts: StepFacts) -> float:
    """Where torch.compile gave up, the host launches every kernel separately again: compiling would save at
    most what the GPU waits for that."""
    gave_up = any(
        activity.compiler is not None and activity.compiler.given_up for activity in facts.activities
    )
    if not gave_up or facts.replay is None:
        return 0.0
    return facts.bounded(facts.replay.host_cost_s, *HOST_TERMS)


def _claim(calls: CompilerCalls) -> str:
    compiled = (
        f"torch.compile compiled {counted(calls.compilations_inside, 'time')} during the measured steps: "
        f"{in_ms(calls.inside_s)} per step"
    )
    count = calls.recompilations_before + calls.recompilations_inside
    given_up = (
        f"After {counted(count, 'recompilation')} torch.compile gave up, and functions of the model run "
        "uncompiled"
    )
    if not calls.given_up:
        return f"{compiled}{_reason(calls, in_window=True)}."
    if not calls.inside_s:
        return f"{given_up}{_reason(calls, in_window=False)}."
    return f"{compiled}. {given_up}{_reason(calls, in_window=False)}."


def _reason(calls: CompilerCalls, *, in_window: bool) -> str:
    """Of the longest recompilation."""
    for each in calls.recompilations:
        if each.function and each.reason and (each.in_window or not in_window):
            line = f"{PurePath(each.file).name}:{each.line}"
            return f". {each.function} at {line} was compiled again ({each.reason})"
    return ""
