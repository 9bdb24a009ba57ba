"""Scoring: what `scalescope explain` says of recorded cases, against what was put into them."""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tracing.cases import Case
from tracing.recording import RECORD, TRACES, Failed, Row, is_recorded, scalescope

MATTERS = 0.05  # of a step: a healthy job has no finding of this size
NEAR_TOP = 0.5  # of the highest cost: a finding that is named first or nearly first


def score(cases: Sequence[Case], out: Path) -> list[Row]:
    """What is said about every recorded case."""
    return [scored(case, out) for case in cases if is_recorded(case, out)]


def scored(case: Case, out: Path) -> Row:
    folder = out / case.folder
    stored = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    began = time.monotonic()
    try:
        answer = explained(folder / TRACES, folder / "explained.json")
    except Failed as error:
        return {"case": case, "right": False, "rank_right": None, "error": str(error)}
    verdict = judged(case, answer)
    gained_s = stored["step_s"] - stored["without_s"] if stored.get("without_s") else None
    return {
        "case": case,
        **verdict,
        "step_s": stored["step_s"],
        "gained_s": gained_s,
        "took_s": time.monotonic() - began,
        "error": "",
    }


def explained(traces: Path, file: Path) -> Row:
    """The answer of `scalescope explain` about a folder of traces."""
    file.unlink(missing_ok=True)
    scalescope(["explain", str(traces), "--json", str(file)], limit_s=180.0)
    try:
        answer: Row = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"explain wrote no answer: {error}") from None
    return answer


def judged(case: Case, answer: Row) -> Row:
    """Whether the expected rule is first or nearly so, and whether anything was made up."""
    findings = sorted(answer["findings"], key=lambda finding: -(finding["cost_s"] or 0.0))
    top_s = (findings[0]["cost_s"] or 0.0) if findings else 0.0
    named = [finding for finding in findings if (finding["cost_s"] or 0.0) >= NEAR_TOP * top_s]
    expected = [finding for finding in named if finding["rule"] in case.expected]
    large = [finding for finding in findings if (finding["share"] or 0.0) >= MATTERS]
    alarms = [finding for finding in large if finding["rule"] not in (*case.expected, *case.allowed)]
    ranks = [finding["ranks"] for finding in expected]
    return {
        "right": bool(expected) if case.expected else not alarms,
        "rank_right": None if case.rank is None else [case.rank] in ranks,
        "alarms": [finding["rule"] for finding in alarms] if case.is_healthy else [],
        "findings": [
            {
                "rule": finding["rule"],
                "share": finding["share"],
                "ranks": finding["ranks"],
                "cost_s": finding["cost_s"],
            }
            for finding in findings
        ],
        "claimed_s": expected[0]["cost_s"] if expected else None,
        "problems": _problems(case, answer),
    }


def _problems(case: Case, answer: Row) -> list[str]:
    """Where the answer contradicts itself or lacks what was recorded."""
    problems = []
    if len(answer["ranks"]) != case.ranks:
        problems.append(f"{len(answer['ranks'])} traces were read of {case.ranks}")
    step_s = answer["step"]["mean_s"]
    if any((finding["cost_s"] or 0.0) > 1.001 * step_s for finding in answer["findings"]):
        problems.append("a finding costs more than the step")
    for rank in answer["ranks"]:
        for step in rank["steps"]:
            idle_s = sum(value for name, value in step.items() if name.startswith("idle_"))
            parts_s = step["compute_s"] + step["exposed_s"] + step["copies_s"] + idle_s
            if abs(parts_s - step["time_s"]) > 1e-6 * step["time_s"]:
                problems.append(f"parts of a step of rank {rank['rank']} do not add up")
                return problems
    return problems


def score_table(rows: Sequence[Row]) -> str:
    """Cases by cause, then the counts."""
    lines = [
        "| cause | case | set | right | rank | first findings (share of the step) | claimed | gained |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        case: Case = row["case"]
        said = (
            ", ".join(_said(finding) for finding in row.get("findings", [])[:3])
            or row["error"][:120]
            or "none"
        )
        problems = "".join(f"; {problem}" for problem in row.get("problems", []))
        cells = (
            case.cause,
            case.name,
            "held out" if case.is_held_out else "development",
            "yes" if row["right"] else "NO",
            {None: "", True: "yes", False: "NO"}[row["rank_right"]],
            said + problems,
            ms(row.get("claimed_s")),
            ms(row.get("gained_s")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_counts(rows)])


def _said(finding: Row) -> str:
    ranks = f" of {', '.join(map(str, finding['ranks']))}" if finding["ranks"] else ""
    return f"{finding['rule']}{ranks} {100 * (finding['share'] or 0.0):.0f} %"


def _counts(rows: Sequence[Row]) -> list[str]:
    by_cause: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        by_cause[row["case"].cause].append(row["right"])
    lines = ["| cause | right |", "|---|---|"]
    lines += [f"| {cause} | {sum(right)} of {len(right)} |" for cause, right in sorted(by_cause.items())]
    caused = [row for row in rows if not row["case"].is_healthy]
    healthy = [row for row in rows if row["case"].is_healthy]
    ranked = [row["rank_right"] for row in rows if row["rank_right"] is not None]
    wrong = sum(bool(row.get("alarms")) for row in healthy)
    near = [
        _is_near(row)
        for row in caused
        if row.get("claimed_s") is not None and row.get("gained_s") is not None
    ]
    return [
        *lines,
        "",
        f"causes right: {_share([row['right'] for row in caused])}; ranks right: {_share(ranked)}",
        f"healthy jobs with a false alarm: {wrong} of {len(healthy)}",
        f"claims within 5 % of the step of what removing the cause gained: {_share(near)}",
        f"not explained: {sum(bool(row['error']) for row in rows)}; "
        f"answers that contradict themselves: {sum(bool(row.get('problems')) for row in rows)}",
        *(
            f"{name}: {_share([row['right'] for row in rows if row['case'].is_held_out is held_out])}"
            for name, held_out in (("development", False), ("held out", True))
        ),
    ]


def _is_near(row: Row) -> bool:
    """Whether a claim and the measured gain differ by at most 5 % of the step."""
    return bool(abs(row["claimed_s"] - row["gained_s"]) <= MATTERS * row["step_s"])


def _share(values: Sequence[bool]) -> str:
    return f"{sum(values)} of {len(values)}" + (f" ({sum(values) / len(values):.0%})" if values else "")


def ms(time_s: float | None) -> str:
    return "" if time_s is None else f"{time_s * 1e3:.1f} ms"
