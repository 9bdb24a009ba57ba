"""Findings about simulated steps of a GPU whose every cost is known: claims against the truth.

    python benchmarks/step_truth.py [--runs 600] [--first 0]

The timed launch and the recorded one have hosts whose speeds differ by up to 20 %, and the profiler slows the
recorded one by 1.2 to 3 times. The truth comes from simulating the timed host again without the cause
(tests/simulated/gpu_steps.py), which shares no formula with the replay that the analysis uses.
"""

import argparse
import collections
import json
import random

from from_tests import GPU_KINDS, simulated_case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    near: dict[str, list[bool]] = collections.defaultdict(list)
    errors: dict[str, list[float]] = collections.defaultdict(list)
    first: dict[str, list[bool]] = collections.defaultdict(list)
    above = 0
    for number in range(given.first, given.first + given.runs):
        kind = GPU_KINDS[number % len(GPU_KINDS)]
        case = simulated_case(kind, random.Random(number))
        first[kind].append(case.is_first)
        above += case.above_terms
        for rule, (claimed_s, true_s) in case.claims.items():
            near[rule].append(abs(claimed_s - true_s) <= max(0.2 * true_s, 0.02 * case.step_s))
            errors[rule].append((claimed_s - true_s) / case.step_s)
    every = [item for items in near.values() for item in items]
    print(f"claims near the truth: {sum(every)} of {len(every)} ({sum(every) / len(every):.1%})")
    for rule, items in sorted(near.items()):
        spread = sorted(errors[rule])
        tenth, most = spread[len(spread) // 10], spread[-1 - len(spread) // 10]
        print(
            f"  {rule}: {sum(items)} of {len(items)}; error of 80 %: {tenth:+.1%} to {most:+.1%} of the step"
        )
    for kind, named in first.items():
        print(f"  {kind}: right first in {sum(named)} of {len(named)}")
    print(f"claims above their terms: {above}")
    print(json.dumps({"near": sum(every), "of": len(every), "above": above}))


if __name__ == "__main__":
    main()
