"""How well steps on N ranks are predicted from one rank's profile and a curve of collectives.

    python benchmarks/prediction.py [--minutes 45] [--out build/prediction] [--job NAME] [--points]

Measures the points of benchmarks/predicting/points.jsonl with gloo ranks on the CPU (links need Linux and
root), together with what predictions rest on: one rank's steps, the same ranks without communication, and
curves of the collectives. What is in `--out` is not measured again, so the command can be repeated to go on.
Then every job is fitted on its calibration half, and the other half is scored, beside simpler models.
`--points` prints every scored point, `--ledger FILE` writes all of them as a ledger.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from predicting.measuring import measure_job
from predicting.points import FILE, GPU_FILE, read_points
from predicting.scoring import MeasuredJob, score
from predicting.tables import coverage_table, errors_table, ledger_of, point_line

from scalescope.results.ledger import ledger_line

OUT = Path(__file__).resolve().parent.parent / "build" / "prediction"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=45.0, help="0 only scores what was measured")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--job", action="append", help="this job alone; may be repeated")
    parser.add_argument("--points", action="store_true", help="print every scored point")
    parser.add_argument("--gpu", action="store_true", help="16 points on one CUDA GPU that ranks share")
    parser.add_argument("--ledger", type=Path, help="write predictions and measurements as a ledger")
    parser.add_argument("--no-score", action="store_true", help="only measure")
    options = parser.parse_args(argv)
    points = read_points(GPU_FILE if options.gpu else FILE)
    jobs = options.job or list(dict.fromkeys(point["job"] for point in points))
    until = time.monotonic() + 60.0 * options.minutes
    for job in jobs if options.minutes else ():
        began = time.monotonic()
        done = measure_job(job, [p["settings"] for p in points if p["job"] == job], options.out / job, until)
        print(f"{job}: {'measured' if done else 'not done'} in {time.monotonic() - began:.0f} s", flush=True)
    if options.no_score:
        return 0
    measured = [MeasuredJob(job, options.out / job) for job in jobs if (options.out / job).is_dir()]
    scored = score(measured, points)
    if options.points:
        for row in scored:
            print(point_line(row))
    for line in (*errors_table(scored), "", *coverage_table(scored)):
        print(line)
    if options.ledger:
        options.ledger.write_text("".join(map(ledger_line, ledger_of(scored))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
