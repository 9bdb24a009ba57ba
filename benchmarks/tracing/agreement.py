"""Agreement: what communication and late ranks cost, by taking communication away and from traces."""

import shutil
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from tracing.cases import Agreement
from tracing.recording import TRACES, Failed, Row, placed, profiled, results_of, scalescope, written_job
from tracing.scoring import MATTERS, explained, ms


def agree(jobs: Iterable[Agreement], out: Path, *, again: bool) -> list[Row]:
    """Communication and lateness per step, measured by ablation and read from traces."""
    rows = []
    for job in jobs:
        folder = out / "agreement" / job.folder
        try:
            if not again:
                _measure_twice(job, folder)
            rows.append(compared(job, folder))
        except Failed as error:
            rows.append({"job": job, "error": str(error)})
        print(f"{job.name}: {rows[-1]['error'] or rows[-1]['differences']}", flush=True)
    return rows


def _measure_twice(job: Agreement, folder: Path) -> None:
    """`scale` on one rank and on all, and a recorded launch of the same job; kept."""
    if (folder / "complete").exists():
        return
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    words = list(job.words)
    if job.job is not None:
        batch = job.arguments.get("batch", 16)
        words = [f"--workload={written_job(job.job, job.arguments, folder)}", f"--batch-size={batch}"]
    scalescope(
        ["scale", *words, f"--world-size=1,{job.ranks}", *placed(job.ranks, job.device), "--repeats=4",
         "--window=0.7s", "--warmup-steps=4", f"--output-dir={folder / 'scale'}"],
        limit_s=420.0,
    )  # fmt: skip
    profiled(words, job.ranks, job.device, folder, steps=10)
    (folder / "complete").touch()


def compared(job: Agreement, folder: Path) -> Row:
    """The two measurements of one job, and by how much of a step they differ."""
    (scaling,) = [row for row in results_of(folder / "scale")["scaling"] if row["world_size"] == job.ranks]
    terms = {term["name"]: term["time_s"] for term in scaling["waterfall"]["terms"]}
    answer = explained(folder / "run" / TRACES, folder / "explained.json")
    step_s, breakdown, waiting = answer["step"]["mean_s"], answer["breakdown"], answer["waiting"]
    late_s = [terms.get("stragglers"), terms.get("random skew")]
    ablation = {
        "communication": terms.get("communication"),
        "late ranks": None if None in late_s else sum(filter(None, late_s)),
    }
    trace = {
        "communication": breakdown["exposed_s"] - (breakdown.get("waiting_s") or 0.0),
        "late ranks": _late_s(waiting),
    }
    pairs = {name: (ablation[name], trace[name]) for name in ablation}
    return {
        "job": job,
        "step_s": step_s,
        "pairs": pairs,
        "differences": {
            name: None if None in pair else (pair[1] - pair[0]) / step_s for name, pair in pairs.items()
        },
        "error": "",
    }


def _late_s(waiting: Row) -> float | None:
    """What late ranks cost per step: what a typical other rank waits for them, or all wait on average."""
    if waiting["known"] != "all":
        return None
    waits_s = {rank: values["waits_s"] for rank, values in waiting["by_rank"].items()}
    if late := waiting["late_ranks"]:
        others_s = [value for rank, value in waits_s.items() if int(rank) not in late]
        return float(statistics.median(others_s))
    return statistics.mean(waits_s.values()) if waits_s else 0.0


def agreement_table(rows: Sequence[Row]) -> str:
    lines = [
        "| job | step | communication by ablation | from traces | difference "
        "| late ranks by ablation | from traces | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    every: list[float] = []
    for row in rows:
        if row["error"]:
            lines.append(f"| {row['job'].name} | {row['error'][:100]} | | | | | | |")
            continue
        cells = [row["job"].name, ms(row["step_s"])]
        for name, (ablation_s, trace_s) in row["pairs"].items():
            difference = row["differences"][name]
            cells += [
                ms(ablation_s),
                ms(trace_s),
                "" if difference is None else f"{100 * difference:+.1f} %",
            ]
            every += [] if difference is None else [abs(difference)]
        lines.append(f"| {' | '.join(cells)} |")
    within = sum(value <= MATTERS for value in every)
    return "\n".join([*lines, "", f"{within} of {len(every)} within 5 % of the step"])
