"""Graph breaks: torch.compile ends a graph at lines it cannot compile, and Python runs in between."""

from pathlib import PurePath

from scalescope.analysis.training.activity import CompilerCalls, GraphBreak
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, StepFacts

RULE = "graph breaks"
_BREAK_S = 100e-6  # of the host, to leave a graph and enter the next: an order of magnitude
_MOST_SHOWN = 5


def rule(facts: StepFacts) -> Finding | Abstention | None:
    breaks = max((_breaks(activity.compiler) for activity in facts.activities), key=len, default=())
    if not breaks:
        return None
    cost_s = _cost_s(facts, len(breaks))
    first = breaks[0]
    lines = "1 line" if len(breaks) == 1 else f"{len(breaks)} lines"
    return facts.finding(
        RULE,
        f"torch.compile ends its graph at {lines} of the model, the first at {_short(first)} "
        f"({first.reason}). Kernels are not fused across it, and Python runs in between.",
        cost_s,
        estimated=True,
        terms=HOST_TERMS,
        evidence=tuple(
            Evidence(name=each.location, value=each.reason, source="graph breaks of torch.compile")
            for each in breaks[:_MOST_SHOWN]
        ),
        advice=(Advice(label=f"change {_short(first)} so that it compiles; fullgraph=True shows the next"),),
    )


def _breaks(compiler: CompilerCalls | None) -> tuple[GraphBreak, ...]:
    """At lines outside torch."""
    breaks = () if compiler is None else compiler.graph_breaks
    return tuple(each for each in breaks if each.file)


def _short(graph_break: GraphBreak) -> str:
    return f"{PurePath(graph_break.file).name}:{graph_break.line}"


def _cost_s(facts: StepFacts, breaks: int) -> float:
    """Only where the GPU is known to wait for the host, and then at most as long."""
    replay = facts.replay
    return 0.0 if replay is None else facts.bounded(min(breaks * _BREAK_S, replay.host_cost_s), *HOST_TERMS)
