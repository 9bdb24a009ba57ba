"""Scripts on one GPU with one thing wrong: what is said first, and what it is said to cost against the gain.

    python benchmarks/step_causes.py OUT.jsonl [--only NAME] [--minutes 9]

Every script is measured as it is by `train -- COMMAND`, and times itself as it is and fixed. A case that is
in OUT.jsonl is not measured again. Cases and what must be named were listed before the first was run;
without a name the job is healthy, and nothing may be named.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "healthy_gpt": (),
    "healthy_convolutions": (),
    "healthy_products": (),
    "healthy_loader": (),
    "tokenizer": ("input-bound",),
    "slow_storage": ("input-bound",),
    "checkpointing": ("activations are computed twice",),
    "checkpointing_large": ("activations are computed twice",),
    "for_loop_optimizer": ("the optimizer is not fused",),
    "for_loop_optimizer_large": ("the optimizer is not fused",),
    "hidden_item": ("host synchronization",),
    "single_precision": ("matrix units are idle",),
    "tiny_layers": ("host-bound",),
    "pageable": ("copy-bound",),
    "garbage": ("garbage collection",),
    "planes": ("images are reordered for convolutions",),
    "empty_cache": ("memory requested from the driver in every step",),
    "evaluation": ("periodic pauses",),
    "saving": ("periodic pauses",),
    "chains": ("many small kernels",),
    "lengths": ("recompilation",),
}
SCRIPT = Path(__file__).parent / "diagnosis" / "gpu_script.py"


def own_ms(case: str, *, fixed: bool) -> float | None:
    """Milliseconds per step by the script's own clock."""
    command = [sys.executable, str(SCRIPT), "--case", case, "--seconds", "3", *(["--fixed"] * fixed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    found = re.search(r"^MS ([\d.]+)$", done.stdout, re.MULTILINE)
    if found is None:
        print(done.stderr[-400:], flush=True)
    return None if found is None else float(found[1])


def measured(case: str) -> dict[str, object]:
    """What `train` says about the script."""
    run = Path(tempfile.mkdtemp(prefix="causes-")) / "run"
    words = ["train", "--window=2s", "--repeats=1", f"--output-dir={run}", "--", sys.executable, str(SCRIPT)]
    done = subprocess.run(
        [sys.executable, "-m", "scalescope", *words, "--case", case],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if not (run / "results.json").is_file():
        return {"error": (done.stdout + done.stderr)[-600:]}
    results = json.loads((run / "results.json").read_text())["results"]
    (job,) = results["training"]
    waterfall = job["step_waterfall"] or {"terms": []}
    return {
        "step_ms": 1e3 * job["step_time_s"]["mean"],
        "mfu": job["mfu"],
        "terms_ms": {term["name"]: round(1e3 * term["time_s"], 3) for term in waterfall["terms"]},
        "findings": [
            (finding["rule"], round(1e3 * (finding["cost_s"] or 0.0), 3)) for finding in results["findings"]
        ],
        "text": done.stdout[-3000:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=9.0)
    given = parser.parse_args()
    ends = time.monotonic() + 60.0 * given.minutes
    made = given.out.read_text().splitlines() if given.out.is_file() else []
    done = {json.loads(line)["case"] for line in made}
    for case, names in CASES.items():
        if case in done or given.only not in case or time.monotonic() + 60.0 > ends:
            continue
        began = time.monotonic()
        row = {"case": case, "expected": names, **measured(case)}
        if names:
            row |= {"own_ms": own_ms(case, fixed=False), "fixed_ms": own_ms(case, fixed=True)}
        row["seconds"] = round(time.monotonic() - began)
        with given.out.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        shown = {name: value for name, value in row.items() if name != "text"}
        print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
