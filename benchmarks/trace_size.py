"""Time and peak memory of `scalescope explain` on a large trace.

    python benchmarks/trace_size.py TRACE [--megabytes 500] [--out FILE]

The large trace repeats the events of TRACE, a recorded one, later and with other correlation ids, until the
JSON has the asked size. The last lines say how long `explain` took, how much memory its largest process had,
and for comparison how long Python's own parser takes for the same text.
"""

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def _moved(event: dict[str, Any], shift_us: float, number: int, steps: int) -> dict[str, Any]:
    event = dict(event)
    if isinstance(event.get("ts"), int | float):
        event["ts"] = event["ts"] + shift_us
    arguments = event.get("args")
    if isinstance(arguments, dict):
        event["args"] = {
            name: value + number * 10_000_000
            if name in ("correlation", "External id") and isinstance(value, int)
            else value
            for name, value in arguments.items()
        }
    name = str(event.get("name", ""))
    if name.startswith("ProfilerStep#"):
        event["name"] = f"ProfilerStep#{int(name.removeprefix('ProfilerStep#')) + number * steps}"
    return event


def repeated(source: Path, target: Path, size_bytes: int) -> int:
    """Write the large trace; how many times the events of the source are in it."""
    raw = source.read_bytes()
    trace = json.loads(gzip.decompress(raw) if source.suffix == ".gz" else raw)
    events = [event for event in trace.pop("traceEvents") if isinstance(event, dict)]
    timed = [event for event in events if event.get("ph") == "X"]
    length_us = max(e["ts"] + e.get("dur", 0) for e in timed) - min(e["ts"] for e in timed) + 1000
    steps = len({e["name"] for e in timed if str(e.get("name", "")).startswith("ProfilerStep#")})
    number = 0
    with target.open("w") as out:
        out.write(json.dumps(trace)[:-1] + ', "traceEvents": [\n')
        while out.tell() < size_bytes:
            moved = [
                _moved(event, number * length_us, number, steps) for event in (timed if number else events)
            ]
            out.write((",\n" if number else "") + ",\n".join(json.dumps(event) for event in moved))
            number += 1
        out.write("\n]}\n")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--megabytes", type=float, default=500.0)
    parser.add_argument("--out", type=Path, help="keep the large trace here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large = asked.out or Path(folder) / "large.json"
        times = repeated(asked.trace, large, int(asked.megabytes * 1e6))
        print(f"{asked.trace.name} {times} times: {large.stat().st_size / 1e6:.0f} MB", flush=True)
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "scalescope", "explain", str(large)], check=False)
        took_s = time.monotonic() - began
        # Of all processes that ended below this one, explain's reader among them.
        peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        began = time.monotonic()
        parsed = subprocess.run(
            [sys.executable, "-c", "import json, sys; json.load(open(sys.argv[1]))", str(large)], check=False
        )
        parsed_s = time.monotonic() - began
        print(f"exit code {done.returncode}, {took_s:.1f} s, {peak_mib:.0f} MiB at most in one process")
        print(f"json.load: exit code {parsed.returncode}, {parsed_s:.1f} s")


if __name__ == "__main__":
    main()
