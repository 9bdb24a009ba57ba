"""Figures of recorded PyTorch traces by the most direct method, beside those of `scalescope explain` and HTA.

    python benchmarks/trace_truth.py FOLDER [--against] [--hta PYTHON] [--repeats 3]

For every trace (*.json, *.json.gz) one sweep over the sorted boundaries of all device events says how long
the GPU computes, communicates, copies and idles: over the kernel span, and per profiler step in windows on
the GPU, from the end of the last work of the steps before to the end of the last of this one. It also prints
what the job suffers from: collectives, kernels, host synchronizations, recomputation. Nothing of scalescope
is imported. --against compares with `scalescope explain` and exits with code 1 if a figure differs by more
than 1 %. --hta compares with HTA 0.5.0, installed in that interpreter, over the events that HTA counts, and
measures time and peak memory of both programs.
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from math import ceil, floor
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
RUNTIME = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"}
COMMUNICATION = re.compile("^(nccl|rccl|msccl|nvshmem)", re.IGNORECASE)
SYNCHRONIZES = re.compile(r"^(cu|hip)\w*Synchronize")
# Backward has other ops for these. Inside backward they compute forward again.
FORWARD_ONLY = re.compile("aten::(conv[123]d|(batch|layer|group)_norm|linear|embedding|max_pool2d)$")
KINDS = (  # the first that is in a name
    *("reduce_scatter", "all_gather", "all_reduce", "all_to_all", "broadcast"),
    *("send_recv", "send", "recv", "gather", "scatter", "reduce"),
)
FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}  # × (n−1)/n
WIDTHS = {"double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "byte": 1, "char": 1}
PARTS = ("time_s", "compute_s", "communication_s", "overlap_s", "exposed_s", "copies_s", "idle_s")
# Idle although work was launched, where a launch counts from the end of the host's call, or from its start.
ALL_PARTS = (*PARTS, "launched_s", "perhaps_launched_s")
SUMS = {
    "time_s": ("compute_s", "exposed_s", "copies_s", "idle_s"),
    "compute_s": ("forward_s", "backward_s", "optimizer_s", "other_s"),
}
EXPLAIN = (sys.executable, "-m", "scalescope", "explain")
ROUNDING_S = 2e-6  # smaller differences are not flagged

Span = tuple[int, int, int]  # start and end in ns, and what to count it as
Facts = dict[str, float | None]


class Range(NamedTuple):  # an event with a duration, in ns
    start: int
    end: int
    thread: object
    name: str
    cat: str
    args: dict[str, Any]


class Work(NamedTuple):  # a kernel, memcpy or memset
    start: int
    end: int
    on_gpu: Range
    what: int  # 0 compute, 1 communication, 2 copy
    call: Range | None  # of the host, that launched it
    step: int  # that launched it; -1 before the first step and after the last


@dataclass(frozen=True)
class Trace:
    ranges: list[Range]
    works: list[Work]
    steps: list[Range]  # the host's marks

    def parts(self) -> tuple[dict[str, float], list[dict[str, float]]]:
        """Over the kernel span, and of every step."""
        launched = [(work.call, work.start) for work in self.works if work.call]
        spans = [(work.start, work.end, work.what) for work in self.works]
        spans += [(call.end, start, 3) for call, start in launched]
        spans += [(call.start, start, 4) for call, start in launched]
        ends = [self.steps[0].start if self.steps else 0] + [0] * len(self.steps)
        is_before = True  # work of no step, until work of one starts
        for work in self.works:
            is_before = is_before and work.step < 0
            if is_before or work.step >= 0:
                ends[work.step + 1] = max(ends[work.step + 1], work.end)
        whole = [self.works[0].start, max(work.end for work in self.works)]
        return sweep(spans, whole)[0], sweep(spans, list(accumulate(ends, max)))


def read(path: Path) -> Trace:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    ranges = []
    for event in (event for event in events if event.get("ph") == "X" and "dur" in event):
        start, length = Decimal(event["ts"]), Decimal(event["dur"])
        rest = (event.get("tid"), event["name"], event.get("cat", ""), event.get("args", {}))
        ranges.append(Range(int(start * 1000), int((start + length) * 1000), *rest))
    ranges.sort(key=lambda item: (item.start, -item.end))
    annotations = [item for item in ranges if item.cat == "user_annotation"]
    steps = [item for item in annotations if item.name.startswith("ProfilerStep")]
    marks = [step.start for step in steps]
    calls = {item.args.get("correlation"): item for item in ranges if item.cat in RUNTIME}
    works = []
    for item in (item for item in ranges if item.cat in DEVICE):
        call = calls.get(item.args.get("correlation", -1))
        step = bisect_right(marks, call.start) - 1 if call and steps and call.start < steps[-1].end else -1
        talks = COMMUNICATION.match(item.name) is not None or "Collective name" in item.args
        works.append(Work(item.start, item.end, item, int(talks) if item.cat == "kernel" else 2, call, step))
    return Trace(ranges, works, steps)


def sweep(spans: Iterable[Span], cuts: Sequence[int]) -> list[dict[str, float]]:
    """Seconds of every part between each two cuts."""
    changes: list[tuple[int, int, int]] = [(cut, -1, 0) for cut in cuts]
    for start, end, counter in spans:
        if end > start:
            changes += [(start, counter, 1), (end, counter, -1)]
    running = [0] * 5
    window, before = -1, 0
    times: Counter[tuple[int, str]] = Counter()
    for time, counter, change in sorted(changes):
        length, before = time - before, time
        compute, communication, copies, surely, perhaps = (count > 0 for count in running)
        idle = not (compute or communication or copies)
        holds = (
            *(True, compute, communication, compute and communication, communication and not compute),
            *(copies and not compute and not communication, idle, idle and surely, idle and perhaps),
        )
        for part, is_so in zip(ALL_PARTS, holds, strict=True):
            times[window, part] += length * is_so
        if counter == -1:
            window += 1
        else:
            running[counter] += change
    return [{part: times[at, part] / 1e9 for part in ALL_PARTS} for at in range(len(cuts) - 1)]


def innermost(ranges: Iterable[Range], points: Iterable[Range]) -> dict[int, Range]:
    """For the start of each point, by its id(): the innermost of these ranges of its thread that holds it."""
    found: dict[int, Range] = {}
    stacks: defaultdict[object, list[Range]] = defaultdict(list)
    both = [*((item.start, -item.end, item) for item in ranges), *((item.start, 1, item) for item in points)]
    for start, order, item in sorted(both, key=lambda entry: entry[:2]):
        stack = stacks[item.thread]
        while stack and stack[-1].end <= start:
            stack.pop()
        if order < 1:
            stack.append(item)
        elif stack:
            found[id(item)] = stack[-1]
    return found


def collectives(trace: Trace) -> dict[str, Facts]:
    """Per kind, launched during steps. The kernel has the metadata, or the host's op around its launch."""
    works = [work for work in trace.works if work.what == 1 and work.call and work.step >= 0]
    calls = [work.call for work in works if work.call]
    told = innermost((item for item in trace.ranges if item.name == "record_param_comms"), calls)
    named = innermost((item for item in trace.ranges if item.name.startswith("nccl:")), calls)
    groups: defaultdict[str, list[tuple[float, int, int]]] = defaultdict(list)  # seconds, bytes, ranks
    for work in works:
        own, call = work.on_gpu, id(work.call)
        facts = told[call].args if "Collective name" not in own.args and call in told else own.args
        name = facts.get("Collective name") or named.get(call, own).name
        letters = re.sub("[^a-z]", "", name.lower())
        kind = next((kind for kind in KINDS if kind.replace("_", "") in letters), "unknown")
        count = int(facts.get("Out msg nelems" if kind == "all_gather" else "In msg nelems", 0))
        size = count * WIDTHS.get(str(facts.get("dtype")).lower(), 0)
        groups[kind].append(((work.end - work.start) / 1e9, size, int(facts.get("Group size", 0))))
    rows: dict[str, Facts] = {}
    for kind, items in groups.items():
        times = [time for time, _, _ in items]
        row: Facts = {"per_step": len(items) / len(trace.steps), "time_s": sum(times) / len(trace.steps)}
        sized = [item for item in items if item[1] and item[2]]
        if sized:
            rate = sum(size for _, size, _ in sized) / sum(time for time, _, _ in sized) / 1e9
            factor = FACTORS[kind] * (sized[0][2] - 1) / sized[0][2] if kind in FACTORS else 1.0
            row |= {"bytes": fmean(size for _, size, _ in sized), "algbw_gbs": rate}
            row["busbw_gbs"] = rate * factor
        rows[kind] = row | {"median_s": median(times), "longest_s": max(times)}
    return rows


def recomputed(trace: Trace) -> tuple[int, float, float]:
    """Forward ops inside backward; ms of kernels they launch, and that the nodes around them launch."""
    nodes = [item for item in trace.ranges if item.name.startswith("autograd::engine::evaluate_function")]
    holders = innermost(nodes, ops := [item for item in trace.ranges if FORWARD_ONLY.match(item.name)])
    again, guilty = [op for op in ops if id(op) in holders], {id(node) for node in holders.values()}
    calls = [work.call for work in trace.works if work.call]
    inside, node_of = innermost(again, calls), innermost(nodes, calls)
    least = sum(work.end - work.start for work in trace.works if id(work.call) in inside)
    most = sum(work.end - work.start for work in trace.works if id(node_of.get(id(work.call))) in guilty)
    return len(again), least / 1e6, most / 1e6


def show(trace: Trace) -> None:
    whole, windows = trace.parts()
    print(f"  {'ms':<18}" + "".join(f"{part.removesuffix('_s'):>14}" for part in PARTS))
    for title, parts in zip(["span", *(step.name for step in trace.steps)], [whole, *windows], strict=True):
        print(f"  {title:<18}" + "".join(f"{parts[part] * 1e3:>14.3f}" for part in PARTS))
    if not windows:
        return
    total = {part: sum(parts[part] for parts in windows) * 1e3 for part in windows[0]}
    idle, count = total["idle_s"], len(windows)
    late = f"{idle - total['perhaps_launched_s']:.3f} to {idle - total['launched_s']:.3f}"
    print(f"  idle {idle / total['time_s']:.1%} of the steps: {idle:.3f} ms, with nothing launched {late}")
    mine = [work for work in trace.works if work.step >= 0]
    kernels = [(work.end - work.start) / 1e3 for work in mine if work.what < 2]
    print(f"  kernels: {len(kernels) / count:.0f} per step, median {median(kernels):.1f} µs")
    for kind, facts in collectives(trace).items():
        print(f"  {kind}: " + ", ".join(f"{key} {value:.6g}" for key, value in facts.items()))
    calls = [item for item in trace.ranges if item.cat in RUNTIME and item.start < trace.steps[-1].end]
    syncs, names = [call for call in calls if SYNCHRONIZES.match(call.name)], Counter[str]()
    for work in mine:
        names[work.on_gpu.name] += work.end - work.start
    told = [name for name, _ in names.most_common(4)] + [name for name in names if "Pageable" in name]
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for item in [*syncs, *(work.on_gpu for work in mine if work.on_gpu.name in told)]:
        groups[item.name].append(item.end - item.start)
    for name, times in sorted(groups.items(), key=lambda item: -sum(item[1])):
        print(f"  {sum(times) / count / 1e6:9.3f} ms per step in {len(times) / count:6.1f}: {name[:90]}")
    ops, least, most = (figure / count for figure in recomputed(trace))
    print(f"  recomputation per step: {ops:.1f} forward ops, kernels of {least:.3f} to {most:.3f} ms")


# A process of its own: the peak of a child counts that of the process that started it, until it has loaded.
MEASURE = """import json, resource, subprocess, sys, time
began = time.perf_counter()
ran = subprocess.run(sys.argv[1:], capture_output=True, text=True)
wall_s = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
why = (ran.stderr.strip() or f"exit code {ran.returncode}").splitlines()[-1]
print(json.dumps({"code": ran.returncode, "wall_s": wall_s, "peak_mib": peak, "out": ran.stdout, "why": why}))
"""
HTA = """import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
figures = analysis.get_temporal_breakdown(visualize=False).iloc[0].to_dict()
figures.update(analysis.get_comm_comp_overlap(visualize=False).iloc[0].to_dict())
print(json.dumps({key: float(value) for key, value in figures.items()}))
"""


def measured(command: Sequence[str]) -> dict[str, Any]:
    wrapped = [sys.executable, "-c", MEASURE, *command]
    return dict(json.loads(subprocess.run(wrapped, stdout=subprocess.PIPE, check=True).stdout))


def differs(title: str, ours: float | None, theirs: float | None) -> bool:
    """Print both. What is not known here is not compared."""
    by, is_off = "", ours is not None and theirs is None
    if ours is not None and theirs is not None:
        by = f"{theirs / ours - 1:+.2%}" if ours else ""
        is_off = abs(theirs - ours) > max(0.01 * abs(ours), ROUNDING_S)
    texts = ["none" if value is None else f"{value:.6f}" for value in (ours, theirs)]
    print(f"    {title:<36}{texts[0]:>18}{texts[1]:>18}{by:>10}{'  DIFFERS' if is_off else ''}")
    return is_off


def against(path: Path, trace: Trace) -> int:
    """Compare with `scalescope explain`; how many figures differ."""
    with tempfile.TemporaryDirectory() as folder:
        ran = measured([*EXPLAIN, str(path), "--json", str(answer := Path(folder) / "answer.json")])
        told = json.loads(answer.read_text()) if answer.exists() else {"ranks": [], "unread": ran["why"]}
    if not told["ranks"]:
        print(f"  scalescope explain did not read it  DIFFERS: {told['unread']}")
        return 1
    (whole, windows), theirs = trace.parts(), told["ranks"][0]
    print("  here and by scalescope explain, in seconds, bytes and GB/s")
    pairs: list[tuple[str, float | None, float | None]] = [("steps", len(windows), len(theirs["steps"]))]
    pairs += [(f"span {part}", whole[part], theirs["span"][part]) for part in PARTS]
    for number, (ours, step) in enumerate(zip(windows, theirs["steps"], strict=False)):
        step["idle_s"] = sum(value for key, value in step.items() if key.startswith("idle_"))
        pairs += [(f"step {number} {part}", ours[part], step[part]) for part in PARTS]
        launched = step["idle_between_s"] + step["idle_queued_s"]
        bound = min(max(launched, ours["launched_s"]), ours["perhaps_launched_s"])
        pairs.append((f"step {number} idle, launched (nearest bound)", bound, launched))
        for total, parts in SUMS.items():
            if abs(sum(step[part] for part in parts) - step[total]) > 1e-9:
                pairs.append((f"step {number} {total}, the sum of its parts", step[total], None))
    entries = [entry for group in told["groups"] for entry in group["collectives"]]
    for kind, facts in collectives(trace).items():
        same = [entry for entry in entries if entry["kind"] == kind]
        pairs += [(f"{kind} {key}", facts[key], sum(e[key] for e in same)) for key in ("per_step", "time_s")]
        if len(same) == 1:  # several groups have several rates
            pairs += [(f"{kind} {k}", facts.get(k), same[0][k]) for k in ("bytes", "algbw_gbs", "busbw_gbs")]
    return sum([differs(*pair) for pair in pairs])


def beside_hta(python: str, path: Path, trace: Trace, repeats: int) -> None:
    """HTA's figures beside ours over the same events; time and memory of HTA and of `scalescope explain`."""
    runs: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats):
            runs["HTA"].append(measured([python, "-c", HTA, str(path.resolve())]))
            runs["explain"].append(measured([*EXPLAIN, str(path), "--json", f"{folder}/{number}.json"]))
    # HTA leaves out launches after the last mark, of the host or the GPU, and keeps whole microseconds.
    last = max((item.start for item in trace.ranges if "ProfilerStep" in item.name), default=0)
    works = [work for work in trace.works if len(trace.steps) < 2 or (work.call and work.call.start < last)]
    times = [(work.start / 1000, (work.end - work.start) / 1000, work.what) for work in works]
    spans = [(ceil(start) * 1000, floor(start + length) * 1000, what) for start, length, what in times]
    same = sweep(spans, [min(start for start, _, _ in spans), max(end for _, end, _ in spans)])[0]
    if runs["HTA"][0]["code"] == 0:
        hta = json.loads(runs["HTA"][0]["out"].splitlines()[-1])
        print("  over the events that HTA counts: here, HTA (seconds, share)")
        differs("kernel time", same["time_s"], hta["kernel_time(us)"] / 1e6)
        differs("idle", same["idle_s"], hta["idle_time(us)"] / 1e6)
        differs("compute", same["compute_s"], hta["compute_time(us)"] / 1e6)
        differs("non-compute", same["exposed_s"] + same["copies_s"], hta["non_compute_time(us)"] / 1e6)
        share = same["overlap_s"] / same["communication_s"] if same["communication_s"] else None
        differs("overlap / communication", share, hta["comp_comm_overlap_pctg"] / 100)
    for program, results in runs.items():
        took = ", ".join(f"{result['wall_s']:.2f} s {result['peak_mib']:.0f} MiB" for result in results)
        print(f"  {program}: {took}", f"FAILED: {results[0]['why'][:150]}" if results[0]["code"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", action="store_true", help="compare with `scalescope explain`")
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program for --hta")
    given = parser.parse_args()
    wrong = 0
    for path in sorted([*given.folder.glob("*.json"), *given.folder.glob("*.json.gz")]):
        print(path.name)
        trace = read(path)
        if not trace.works:
            print("  no device work")
            continue
        show(trace)
        wrong += against(path, trace) if given.against else 0
        if given.hta:
            beside_hta(given.hta, path, trace, given.repeats)
    if given.against:
        print(f"{wrong} figures differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
