"""Makes jobs.jsonl: jobs with a known truth, on which the search of `tune` is scored.

    python benchmarks/tuning/simulated_jobs.py

A job has parts of a step (matrix products, other kernels, optimizer, the host's work, loading, communication)
and options that multiply some of them, alone or only together with others. Its step follows from the parts:
the longer of GPU and host, and what loading and communication cannot hide behind them. So effects interact
as they do in practice, without a list of interactions. How wide effects spread was chosen by what is
published and measured of each setting, before the search was written; the file is the truth from then on.
"""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

JOBS = Path(__file__).parent / "jobs.jsonl"
COUNT, NOTHING_HELPS = 600, 240
_SEED = 20
_SHORT = ["precision bf16", "precision fp16"]
_KINDS = (
    ("cuda", "transformer", 1),
    ("cuda", "cnn", 1),
    ("cuda", "mlp", 1),
    ("cuda", "own", 1),
    ("cuda", "loader", 1),
    ("cuda", "transformer", 8),
    ("cpu", "mlp", 1),
    ("cpu", "mlp", 2),
    ("cpu", "loader", 1),
    ("cpu", "slow_link", 2),
)
Options = list[dict[str, Any]]


def main() -> int:
    generator = random.Random(_SEED)
    jobs = [_job(number, generator) for number in range(COUNT)]
    JOBS.write_text("".join(json.dumps(job, separators=(",", ":")) + "\n" for job in jobs))
    print(f"{len(jobs)} jobs, {sum(job['nothing_helps'] for job in jobs)} of them where nothing helps")
    return 0


def _job(number: int, generator: random.Random) -> dict[str, Any]:
    device, kind, ranks = _KINDS[number % len(_KINDS)]
    nothing_helps = generator.random() < NOTHING_HELPS / COUNT
    options = _options(device, kind, ranks, generator)
    if nothing_helps:
        options = [_useless(option, generator) for option in options]
    gpu = device == "cuda"
    return {
        "id": number,
        "device": device,
        "kind": kind,
        "ranks": ranks,
        "nothing_helps": nothing_helps,
        "step_s": _rounded(math.exp(generator.uniform(math.log(0.002), math.log(0.5)))),
        "start_s": _rounded(generator.uniform(4.0, 7.0) if gpu else generator.uniform(0.8, 4.0)),
        "compile_first_s": _rounded(generator.uniform(15.0, 60.0) if gpu else generator.uniform(20.0, 90.0)),
        "compile_again_s": _rounded(generator.uniform(3.0, 12.0) if gpu else generator.uniform(2.0, 15.0)),
        "parts": _parts(device, kind, ranks, generator),
        "options": options,
        "noise": _noise(generator, gpu),
    }


def _parts(device: str, kind: str, ranks: int, generator: random.Random) -> dict[str, float]:
    """Shares of the baseline's GPU time (on the CPU: of its compute), and what else takes time beside it."""
    products = generator.uniform(0.3, 0.9)
    optimizer = generator.uniform(0.01, 0.15)
    host = generator.uniform(0.05, 0.7)
    if kind in ("mlp", "own") and device == "cuda" and generator.random() < 0.4:
        host = generator.uniform(1.0, 3.0)  # the host is the limit
    load = {"loader": generator.uniform(0.3, 5.0)}.get(kind, 0.0)
    communication = {"slow_link": generator.uniform(1.0, 20.0), "transformer": generator.uniform(0.1, 1.5)}
    shares = {
        "products": products * (1.0 - optimizer),
        "kernels": (1.0 - products) * (1.0 - optimizer),
        "optimizer": optimizer,
        "host": host if device == "cuda" else 0.0,
        "load": load,
        "communication": communication.get(kind, generator.uniform(0.02, 0.6)) if ranks > 1 else 0.0,
        "overlap": generator.uniform(0.0, 0.6),
    }
    return {name: _rounded(share) for name, share in shares.items()}


def _options(device: str, kind: str, ranks: int, generator: random.Random) -> Options:
    options = _gpu_options(kind, generator) if device == "cuda" else _cpu_options(generator)
    if kind == "loader":
        options += _loader_options(device, generator)
    if ranks > 1:
        options += _exchange_options(device, generator)
    return options


def _gpu_options(kind: str, draw: random.Random) -> Options:
    half = draw.uniform(0.1, 0.35)
    compiled = draw.uniform(0.35, 1.0)
    options = [
        _option("precision", "tf32", products=draw.uniform(0.2, 0.5)),
        _option(
            "precision", "bf16", products=half, kernels=draw.uniform(0.6, 1.05), host=draw.uniform(1, 1.5)
        ),
        _option(
            "precision",
            "fp16",
            products=half * draw.uniform(0.85, 1.15),
            kernels=draw.uniform(0.6, 1.1),
            host=draw.uniform(1.1, 1.8),
        ),
        _option("compile", "default", kernels=compiled, host=draw.uniform(0.4, 1.3)),
        _option(
            "compile",
            "reduce-overhead",
            fails=draw.random() < 0.25,
            kernels=compiled * draw.uniform(0.97, 1.1),
            host=draw.uniform(0.05, 0.3),
        ),
        _option("fused_optimizer", True, optimizer=draw.uniform(0.2, 1.0), host=draw.uniform(0.85, 1.0)),
        _option("pin_cores", "yes", host=draw.choice([1.0, 1.0, 1.0, draw.uniform(0.8, 1.2)])),
    ]
    if kind == "cnn":
        options.append(_option("memory_format", "channels_last", products=draw.uniform(0.8, 1.2)))
        options[-1]["together"] = {"with": _SHORT, "factors": {"products": _rounded(draw.uniform(0.45, 0.9))}}
        options.append(_option("cudnn_benchmark", True, products=draw.uniform(0.8, 1.0)))
    if kind == "transformer":
        options += [
            _option("attention", name, needs=needs, kernels=draw.uniform(0.9, 1.5))
            for name, needs in (("flash", _SHORT), ("efficient", []), ("cudnn", _SHORT), ("math", []))
        ]
    return options


def _cpu_options(draw: random.Random) -> Options:
    products = draw.choice([draw.uniform(0.4, 0.8), draw.uniform(1.0, 3.0)])
    return [
        _option("precision", "bf16", products=products, kernels=draw.uniform(0.9, 1.2)),
        _option("compile", "default", fails=draw.random() < 0.2, kernels=draw.uniform(0.6, 1.1)),
        _option("fused_optimizer", True, optimizer=draw.uniform(0.4, 1.0)),
        _option("pin_cores", "no", products=draw.uniform(0.99, 1.1)),
        _option(
            "threads_per_rank", 2, products=draw.choice([draw.uniform(0.6, 0.9), draw.uniform(1.0, 1.4)])
        ),
    ]


def _loader_options(device: str, draw: random.Random) -> Options:
    serial = draw.uniform(0.0, 0.2)
    options = [
        _option("num_workers", count, load=serial + (1.0 - serial) / count * draw.uniform(1.0, 1.2))
        for count in (1, 2, 4)
    ]
    if device == "cuda":
        options += [
            _option("pin_memory", True, load=draw.uniform(0.6, 1.0)),
            _option("non_blocking", True, host=draw.uniform(0.9, 1.0)),
            _option("prefetch_stream", True, load=draw.uniform(0.9, 1.1)),
        ]
    return options


def _exchange_options(device: str, draw: random.Random) -> Options:
    half = draw.uniform(0.5, 0.65)
    options = [
        _option("comm_hook", "fp16", communication=half, kernels=draw.uniform(1.0, 1.08)),
        _option(
            "comm_hook", "bf16", communication=half * draw.uniform(0.97, 1.03), kernels=draw.uniform(1, 1.08)
        ),
        *(
            _option("bucket_cap_mb", size, communication=draw.uniform(0.85, 1.25))
            for size in (None, 1.0, 5.0, 25.0, 100.0)
        ),
        _option("static_graph", False, kernels=draw.uniform(1.0, 1.03)),
        _option("gradient_as_bucket_view", False, kernels=draw.uniform(1.0, 1.05)),
        _option("find_unused_parameters", True, kernels=draw.uniform(1.0, 1.08)),
        _option("broadcast_buffers", True, communication=draw.uniform(1.0, 1.1)),
        _option("strategy", "fsdp", communication=draw.uniform(0.9, 1.8), kernels=draw.uniform(1.0, 1.3)),
        _option("strategy", "zero1", optimizer=draw.uniform(0.3, 1.5), communication=draw.uniform(1.0, 1.3)),
    ]
    if device == "cuda":
        options += [
            _option("env", name, communication=draw.uniform(0.85, 1.4))
            for name in ("NCCL_ALGO=Ring", "NCCL_ALGO=Tree", "NCCL_PROTO=Simple", "NCCL_PROTO=LL128")
        ]
    return options


def _option(
    setting: str,
    value: object,
    *,
    fails: bool = False,
    needs: list[str] | None = None,
    **factors: float,
) -> dict[str, Any]:
    """An option; a factor multiplies a part of the step, `needs` are options of which it needs one to run."""
    rounded = {part: _rounded(factor) for part, factor in factors.items()}
    option = {"setting": setting, "value": value, "factors": rounded}
    return {**option, **({"fails": True} if fails else {}), **({"needs": needs} if needs else {})}


def _useless(option: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """An option that changes nothing, or slows the step."""
    worse = draw.random() < 0.5
    factors = {
        part: _rounded(max(factor, draw.uniform(1.0, 1.3))) if worse else 1.0
        for part, factor in option["factors"].items()
    }
    useless = {name: value for name, value in option.items() if name != "together"}
    return {**useless, "factors": factors}


def _noise(draw: random.Random, gpu: bool) -> dict[str, Any]:
    """What launches of one configuration differ by, relative to their step."""
    deviation = math.exp(draw.uniform(math.log(0.001), math.log(0.03 if gpu else 0.05)))
    kind = draw.choice(["normal", "normal", "heavy", "bimodal"])
    noise: dict[str, Any] = {"kind": kind, "deviation": _rounded(deviation)}
    if kind == "heavy":
        noise["freedom"] = 3
    if kind == "bimodal":
        noise |= {"slower": _rounded(draw.uniform(0.03, 0.2)), "share": _rounded(draw.uniform(0.05, 0.5))}
    if draw.random() < 0.2:
        noise["drift_per_hour"] = _rounded(draw.uniform(-0.3, 0.3))
    return noise


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    sys.exit(main())
