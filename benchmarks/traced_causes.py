"""Traces of jobs with one known cause: does `scalescope explain` name it, and the rank?

    python benchmarks/traced_causes.py list
    python benchmarks/traced_causes.py record [--device cpu|cuda] [--only TEXT] [--minutes 60] [--pack FOLDER]
    python benchmarks/traced_causes.py score [--device cpu|cuda] [--set development|held-out]
    python benchmarks/traced_causes.py agree [--device cpu|cuda] [--only TEXT]
    python benchmarks/traced_causes.py unpack FILE.tar...

`record` writes a folder per case below --out: case.json and traces/. What is recorded already is not recorded
again. `score` runs `scalescope explain FOLDER --json FILE` on each. `agree` measures a few jobs with
`scalescope scale`, which takes communication away, and compares what their traces say. Cases are data:
tracing/cases.py.
"""

import argparse
import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tracing.agreement import agree, agreement_table
from tracing.cases import AGREEMENTS, Agreement, Case, cpu_cases, gpu_cases
from tracing.recording import Row, pack, record, unpack
from tracing.scoring import score, score_table

OUT = Path(__file__).resolve().parents[1] / "build" / "traced_causes"


def list_table(cases: Iterable[Case]) -> str:
    lines = [
        "| device | ranks | case | expected | rank | recorded by | set |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        cells = (
            case.device,
            str(case.ranks),
            case.name,
            " or ".join(case.expected)
            or f"healthy{'; may be said: ' if case.allowed else ''}{', '.join(case.allowed)}",
            "" if case.rank is None else str(case.rank),
            case.recorder,
            "held out" if case.is_held_out else "development",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _chosen(asked: argparse.Namespace) -> list[Case]:
    cases = {"cpu": cpu_cases(), "cuda": gpu_cases(), None: [*cpu_cases(), *gpu_cases()]}[asked.device]
    held_out = {"development": False, "held-out": True, "all": None}[asked.set]
    return [
        case.tiny() if asked.tiny else case
        for case in cases
        if asked.only in case.folder.replace("_", " ") or asked.only in case.name
        if held_out is None or case.is_held_out is held_out
    ]


@contextlib.contextmanager
def _written(file: Path | None, rows: list[Row]) -> Iterator[None]:
    """Keep rows as JSON as well."""
    yield
    if file is not None:
        plain = [
            {
                name: value.name if isinstance(value, Case | Agreement) else value
                for name, value in row.items()
            }
            for row in rows
        ]
        file.write_text(json.dumps(plain, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("list", "record", "score", "agree", "unpack"))
    parser.add_argument("files", nargs="*", type=Path, help="archives to unpack")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="cases of the CPU or of the GPU; default: both"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--set", choices=("development", "held-out", "all"), default="all")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--minutes", type=float, default=60.0, help="record: start no case after that")
    parser.add_argument(
        "--pack", type=Path, help="record: write archives of what is recorded into this folder"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="record: GPU cases on the CPU, small; means nothing"
    )
    parser.add_argument("--again", action="store_true", help="agree: measure nothing")
    parser.add_argument("--json", type=Path, help="also write the rows of a score or an agreement here")
    asked = parser.parse_args()
    asked.out = asked.out.resolve()
    rows: list[Row] = []
    if asked.command == "list":
        print(list_table(_chosen(asked)))
    elif asked.command == "unpack":
        unpack(asked.files, asked.out)
    elif asked.command == "record":
        asked.out.mkdir(parents=True, exist_ok=True)
        record(_chosen(asked), asked.out, asked.device, asked.minutes)
        if asked.pack is not None:
            pack(_chosen(asked), asked.out, asked.pack)
    elif asked.command == "score":
        with _written(asked.json, rows):
            rows += score(_chosen(asked), asked.out)
        print(score_table(rows))
    else:
        jobs = [job for job in AGREEMENTS if job.device == (asked.device or "cpu") and asked.only in job.name]
        with _written(asked.json, rows):
            rows += agree(jobs, asked.out, again=asked.again)
        print(agreement_table(rows))


if __name__ == "__main__":
    main()
