"""How often the waterfall's intervals hold the truth: random simulated clusters of up to 1,024 ranks.

    python benchmarks/waterfall_truth.py [--cases 200] [--seed 1] [--jobs 2] [--store FILE] [--only NUMBER]

Every case draws a cluster (jitter, a slow rank, stalls, two levels of network, a slow network card, noise
between launches, overlap, slowed compute), runs `scalescope scale` on the fake launcher, and compares every
term of the waterfall with what the cluster truly loses. Finished cases are kept in --store, so that the
command can be repeated to go on. It prints Markdown: by number of ranks and term, how often the 95 % interval
holds the truth; then how often the findings name what was put in. What is tuned is tuned on other seeds
than 1.
"""

import argparse
import json
import math
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from from_tests import ClusterModel, FakeLauncher, LossTruth, Network, truth_of
from null_watcher import NullWatcher

from scalescope.experiment.given import Given
from scalescope.results.run import Run
from scalescope.studies.execution import run_study
from scalescope.studies.prepared import prepare
from scalescope.studies.request import Request
from scalescope.studies.scaling.scale import ScaleStudy

SIZES = {2: 36, 4: 36, 8: 42, 16: 36, 64: 26, 256: 14, 1024: 10}  # of 200 cases
TERMS = ("smaller batch", "wrapper", "contention", "stragglers", "random skew", "communication", "input")
BATCH = 64
WARMUP, STEPS = 12, 40
GRADIENT_BYTES = 100_000_000
STRAGGLER, SKEW, LINKS = "straggling rank", "random skew between ranks", "unequal links"
MATTERS = 0.05  # of a step: worth a finding
NOTHING = 0.01  # of a step: not worth one

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A cluster and what is asked about it."""

    model: ClusterModel
    ranks: int
    settings: dict[str, object]


def drawn(seed: int, number: int) -> Case:
    """The same case for the same numbers."""
    draw = random.Random(f"{seed}/{number}")
    sizes = [ranks for ranks, count in SIZES.items() for _ in range(count)]
    random.Random(seed).shuffle(sizes)
    ranks = sizes[number % len(sizes)]
    base_s = 10 ** draw.uniform(math.log10(0.02), math.log10(0.2))
    fixed = draw.uniform(0.1, 0.4)
    has_loader = ranks <= 64 and draw.random() < 0.15
    model = ClusterModel(
        seed=number + 1000 * seed,
        fixed_s=fixed * base_s,
        per_sample_s=(1.0 - fixed) * base_s / BATCH,
        wrapper_s=base_s * draw.uniform(0.0, 0.03),
        contention_s=base_s * draw.uniform(0.0, 0.1) * (draw.random() < 0.7),
        input_alone_s=base_s * draw.uniform(0.0, 0.05) if has_loader else 0.0,
        input_s=base_s * draw.uniform(0.05, 0.2) if has_loader else 0.0,
        jitter_s=base_s * draw.uniform(0.0, 0.03),
        rank_noise_s=base_s * draw.uniform(0.0, 0.003),
        launch_noise=draw.uniform(0.0005, 0.008),
        network_noise=draw.uniform(0.0, 0.03),
        recording_s=base_s * draw.uniform(0.0, 0.05),
        slowdown=draw.uniform(0.0, 0.2) * (draw.random() < 0.5),
        buckets=draw.randint(1, 8),
        gradient_bytes=GRADIENT_BYTES,
        **late(draw, base_s, ranks),
        **connected(draw, base_s, ranks),
    )
    settings: dict[str, object] = {"num_workers": 1} if has_loader else {}
    if draw.random() < 0.25:
        settings["global_batch_size"] = BATCH * ranks
    else:
        settings["batch_size"] = BATCH
    return Case(model, ranks, settings)


def late(draw: random.Random, base_s: float, ranks: int) -> dict[str, Any]:
    """A slow rank in some cases, stalls in some."""
    parts: dict[str, Any] = {}
    if draw.random() < 0.4:
        parts |= {"slow_rank": draw.randrange(1, ranks), "slow_s": base_s * 10 ** draw.uniform(-2.0, -0.5)}
    if draw.random() < 0.3:
        per_step = draw.uniform(0.02, 0.3)  # of all ranks
        parts |= {"burst_probability": per_step / ranks, "burst_s": base_s * draw.uniform(0.1, 1.0)}
    return parts


def connected(draw: random.Random, base_s: float, ranks: int) -> dict[str, Any]:
    """A network that takes 2 to 80 % of the compute for all gradients, in some cases with a slow card."""
    ranks_per_node = 16 if ranks == 1024 else 8 if ranks >= 64 else draw.choice((2, 4, 8))
    nodes = math.ceil(ranks / ranks_per_node)
    slow: dict[str, Any] = {}
    if nodes >= 3 and draw.random() < 0.3:
        slow = {"slow_node": draw.randrange(nodes), "slow_by": draw.uniform(2.5, 5.0)}
    usual = Network(**slow)
    takes_s = ClusterModel(ranks_per_node=ranks_per_node, network=usual).transfer_s(GRADIENT_BYTES, ranks)
    slower = base_s * 10 ** draw.uniform(-1.7, -0.1) / takes_s
    network = Network(
        fast_bytes_per_s=usual.fast_bytes_per_s / slower,
        card_bytes_per_s=usual.card_bytes_per_s / slower,
        **slow,
    )
    return {"ranks_per_node": ranks_per_node, "network": network}


def measured(case: Case) -> tuple[Run, Row]:
    """The run as `scalescope scale` makes it, and its results.json."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "world_size": f"1,{case.ranks}",
            "steps_per_epoch": WARMUP + STEPS,
            "warmup_steps": WARMUP,
            "output_dir": f"{folder}/run",
            **case.settings,
        }
        flags = {
            name: tuple(Given(text, name) for text in str(value).split(",")) for name, value in asked.items()
        }
        launcher = FakeLauncher(case.model, case.model.machine(case.ranks))
        watcher: Any = NullWatcher()
        report = run_study(prepare(ScaleStudy(), Request(verb="scale", flags=flags)), launcher, watcher)
        assert report.run is not None
        return report.run, json.loads(Path(folder, "run", "results.json").read_text(encoding="utf-8"))


def scored(seed: int, number: int) -> Row:
    """A case's terms with the truth, and its findings."""
    began, case = time.monotonic(), drawn(seed, number)
    run, summary = measured(case)
    trial = next(
        result.trial
        for result in run.results
        if (result.trial.benchmark, result.trial.world_size) == ("train", case.ranks)
        and not result.trial.ablations
    )
    measured_s, truth = time.monotonic() - began, truth_of(case.model, trial)
    (scaling,) = [row for row in summary["results"]["scaling"] if row["world_size"] == case.ranks]
    return {
        "seed": seed,
        "case": number,
        "ranks": case.ranks,
        "step_s": truth.step_s,
        "terms": [compared(term, truth) for term in scaling["waterfall"]["terms"]],
        "put_in": put_in(case, truth),
        "findings": [
            {"rule": finding["rule"], "rank": finding["evidence"].get("rank", {}).get("value")}
            for finding in summary["results"]["findings"]
        ],
        "has_pairs": any(result.trial.measures_pairs for result in run.results),
        "measured_s": round(measured_s, 1),
        "took_s": round(time.monotonic() - began, 1),
    }


def compared(term: Row, truth: LossTruth) -> Row:
    """A term of results.json beside its truth."""
    true_s, interval = truth.terms().get(term["name"]), term["ci95_time_s"]
    holds = None
    if true_s is not None and interval is not None and None not in interval:
        holds = interval[0] <= true_s <= interval[1]
    return {
        "name": term["name"],
        "truth_s": true_s,
        "time_s": term["time_s"],
        "ci95_s": interval,
        "holds": holds,
    }


def put_in(case: Case, truth: LossTruth) -> Row:
    """What the findings should recover, in shares of a step."""
    model = case.model
    return {
        "slow_rank": model.slow_rank,
        "behind": model.slow_s / truth.step_s,
        "skew": truth.random_skew_s / truth.step_s,
        "communication": truth.communication_s / truth.step_s,
        "slow_node": model.network.slow_node,
    }


def coverage_table(rows: Iterable[Row]) -> list[str]:
    """By number of ranks and term: intervals that hold the truth, of all."""
    cells: dict[tuple[int | str, str], list[bool | None]] = {}
    for row in rows:
        for term in row["terms"]:
            for ranks in (row["ranks"], "all"):
                for name in (term["name"], "all terms"):
                    cells.setdefault((ranks, name), []).append(term["holds"])
    present = [name for name in (*TERMS, "all terms") if ("all", name) in cells]
    lines = ["| ranks | " + " | ".join(present) + " |", "|---" * (len(present) + 1) + "|"]
    sizes = sorted({ranks for ranks, _ in cells if isinstance(ranks, int)})
    for ranks in (*sizes, "all"):
        texts = [share(cells.get((ranks, name), [])) for name in present]
        lines.append(f"| {ranks if isinstance(ranks, str) else f'{ranks:,}'} | " + " | ".join(texts) + " |")
    return lines


def share(values: list[bool | None]) -> str:
    """`95 % of 40`; a term without an interval does not hold the truth."""
    return f"{sum(map(bool, values)) / len(values):.0%} of {len(values)}".replace("%", " %") if values else ""


def findings_table(rows: list[Row]) -> list[str]:
    """How often findings name what was put in, and how often they appear without it."""
    late = [
        row for row in rows if row["put_in"]["slow_rank"] is not None and row["put_in"]["behind"] > MATTERS
    ]
    even = [row for row in rows if row["put_in"]["slow_rank"] is None]
    skewed = [row for row in rows if row["put_in"]["skew"] > MATTERS]
    aligned = [row for row in rows if row["put_in"]["skew"] < NOTHING]
    pairs = [row for row in rows if row["has_pairs"] and row["put_in"]["communication"] > MATTERS]
    slow_card = [row for row in pairs if row["put_in"]["slow_node"] is not None]
    alike = [row for row in pairs if row["put_in"]["slow_node"] is None]
    right = [row for row in late if row["put_in"]["slow_rank"] in ranks_named(row)]
    lines = ["| put in | cases | finding | reported |", "|---|---|---|---|"]
    counts = [
        (
            f"a rank slower by more than {MATTERS * 100:.0f} % of a step",
            late,
            STRAGGLER,
            reported(late, STRAGGLER),
        ),
        ("the same, with the right rank", late, STRAGGLER, len(right)),
        ("no slow rank", even, STRAGGLER, reported(even, STRAGGLER)),
        (f"random skew of more than {MATTERS * 100:.0f} % of a step", skewed, SKEW, reported(skewed, SKEW)),
        (f"random skew of less than {NOTHING * 100:.0f} %", aligned, SKEW, reported(aligned, SKEW)),
        ("a slow network card, and communication that costs", slow_card, LINKS, reported(slow_card, LINKS)),
        ("equal cards, and communication that costs", alike, LINKS, reported(alike, LINKS)),
    ]
    return lines + [f"| {name} | {len(cases)} | {rule} | {count} |" for name, cases, rule, count in counts]


def reported(rows: list[Row], rule: str) -> int:
    return sum(any(finding["rule"] == rule for finding in row["findings"]) for row in rows)


def ranks_named(row: Row) -> list[int]:
    return [finding["rank"] for finding in row["findings"] if finding["rule"] == STRAGGLER]


def missed_lines(rows: Iterable[Row]) -> list[str]:
    """Every interval that misses the truth, to look into."""
    return [
        f"seed {row['seed']} case {row['case']}, {row['ranks']} ranks, {term['name']}: "
        f"{ms(term['time_s'])} {[ms(end) for end in term['ci95_s'] or ()]}, truth {ms(term['truth_s'])}"
        f" of a step of {ms(row['step_s'])}"
        for row in rows
        for term in row["terms"]
        if not term["holds"]
    ]


def ms(time_s: float | None) -> str:
    return "unknown" if time_s is None else f"{time_s * 1e3:.3f} ms"


def scored_pair(key: tuple[int, int]) -> Row:
    return scored(*key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--store", type=Path, default=Path("waterfall_truth.jsonl"))
    parser.add_argument("--only", type=int, help="one case, printed in full and not stored")
    parser.add_argument("--ranks", type=int, nargs="*", default=list(SIZES), help="leave out other cases")
    parser.add_argument("--missed", action="store_true", help="list the intervals that miss the truth")
    asked = parser.parse_args()
    if asked.only is not None:
        print(drawn(asked.seed, asked.only))
        print(json.dumps(scored(asked.seed, asked.only), indent=1))
        return
    lines = asked.store.read_text(encoding="utf-8").splitlines() if asked.store.exists() else []
    wanted = [n for n in range(asked.cases) if drawn(asked.seed, n).ranks in asked.ranks]
    done = {row["case"]: row for row in map(json.loads, lines) if row["seed"] == asked.seed}
    # The largest first, so that no core waits for one of them at the end.
    missing = sorted(((asked.seed, n) for n in wanted if n not in done), key=lambda key: -drawn(*key).ranks)
    began = time.monotonic()
    with multiprocessing.Pool(asked.jobs) as pool, asked.store.open("a", encoding="utf-8") as stream:
        for row in pool.imap_unordered(scored_pair, missing):
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            done[row["case"]] = row
    rows = [done[number] for number in wanted]
    print(f"{len(rows)} cases, seed {asked.seed}; {len(missing)} now, in {time.monotonic() - began:.0f} s.\n")
    print("\n".join([*coverage_table(rows), "", *findings_table(rows)]))
    if asked.missed:
        print("\n".join(["", *missed_lines(rows)]))


if __name__ == "__main__":
    main()
