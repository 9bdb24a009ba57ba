"""Where ranks run: settings shared by every benchmark that starts ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.code_lines import Code, ScriptContext, code, statement, variable
from scalescope.catalog.link import rates_of
from scalescope.catalog.setting import SCRIPT, ExpectedEffect, Lever, PerDevice, setting
from scalescope.errors import BadInput, CannotRun

_H200 = "docs/measurements/2026-11-15-h200-levers.md"
_PINNED = {
    "yes": "start each rank with `taskset -c CORES`, with its own cores, close to its GPU "
    "(`nvidia-smi topo -m` lists them)",
    "no": "start the ranks without taskset, numactl or --cpu-bind",
}


def _threads(count: int | None, context: ScriptContext) -> Code:
    """Math libraries read the variable when they are loaded; for a command it is set in the environment."""
    if count is None:
        return Code()
    if context.strategy == SCRIPT:
        return code(variable("OMP_NUM_THREADS", f"{count}"))
    return code(statement("start", f"torch.set_num_threads({count})"))


def _cores(choice: str, context: ScriptContext) -> Code:
    return Code(instead=_PINNED.get(choice))


def _environment(variables: Mapping[str, str] | None, context: ScriptContext) -> Code:
    return code(*(variable(name, value) for name, value in (variables or {}).items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks run and what part of the machine each gets."""

    world_size: int = setting(
        1,
        "Number of ranks (processes, one per GPU); a list measures each.",
        low=1,
        high=65_536,
        aliases=("--nproc-per-node",),
        common="Ranks",
        brief="Number of ranks.",
    )
    device: str = setting(
        "auto",
        "Device of the ranks; auto uses GPUs if there are any.",
        choices=("cpu", "cuda", "auto"),
        common="Ranks",
        brief="cpu or cuda; auto uses GPUs if present.",
    )
    backend: str = setting(
        "auto",
        "Communication backend; auto is nccl on GPUs and gloo on the CPU.",
        choices=("gloo", "nccl", "auto"),
    )
    threads_per_rank: int | None = setting(
        None,
        "CPU threads per rank; auto divides the cores by the run's largest world size and uses "
        "that number for every world size.",
        low=1,
        high=4096,
        none_word="auto",
        lever=Lever(
            tries=(1,),
            multiples=(0.5, 2),
            needs=("cpu",),
            changes="rounding",
            needs_new_ranks=True,
            expects=(
                ExpectedEffect(
                    factors={"products": 0.98},
                    source="small operations wait for threads, large ones use them",
                ),
            ),
            code=_threads,
        ),
    )
    pin_cores: str = setting(
        "auto",
        "Pin each rank to its own cores, close to its GPU if it has one; auto pins CPU ranks if there are "
        "enough cores, and does not pin GPU ranks.",
        choices=("auto", "yes", "no"),
        lever=Lever(
            tries=(PerDevice(cpu="no", cuda="yes"),),
            needs_new_ranks=True,
            expects=(
                ExpectedEffect(value="yes", factors={"host": 0.99}, source=_H200),
                ExpectedEffect(value="no", factors={"products": 1.02}, source="threads move between cores"),
            ),
            code=_cores,
        ),
    )
    oversubscribe: bool = setting(
        False,
        "Allow several ranks per GPU, or more than 32 per core. This only exercises the code path; the "
        "result is not a scaling measurement.",
    )
    link: str | None = setting(
        None,
        "Emulate a network link with this rate for each rank, in its own network namespace: 100mbit, 1gbit, "
        "or 0:1gbit,1:100mbit per rank. Requires Linux and root; repeat for a sweep.",
        kind="link",
    )
    split_gpu: int | None = setting(
        None,
        "Give each rank 1/N of one GPU's multiprocessors (CUDA MPS), with real NCCL communication. Memory "
        "bandwidth, cache and power are still shared.",
        low=2,
        high=48,
    )
    among: str = setting(
        "all",
        "Which ranks of several nodes take part: all in their order, those of one node, or one per node.",
        choices=("all", "one_node", "one_per_node"),
        internal=True,
    )
    seed: int = setting(
        0, "Seed for parameters and data; every launch of a trial uses the same seed.", low=0, high=2**31
    )
    env: str = setting(
        None,
        "NAME=VALUE: set an environment variable of the ranks (NCCL_ALGO, OMP_NUM_THREADS, ...). "
        "Repeat for more variables; the same name twice is a sweep.",
        kind="env",
        lever=Lever(
            tries=("NCCL_ALGO=Ring", "NCCL_ALGO=Tree", "NCCL_PROTO=Simple", "NCCL_PROTO=LL128"),
            needs=("nccl", "ranks"),
            changes="rounding",
            expects=(ExpectedEffect(factors={"communication": 1.0}, source="NCCL already chooses"),),
            code=_environment,
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse links and shares that these ranks cannot have."""
        if values["link"] is not None:
            rates_of(values["link"], values["world_size"])
            if values["backend"] == "nccl":
                raise CannotRun(
                    "--link cannot be used with nccl, which uses no sockets on one host; add --device cpu"
                )
        parts = values["split_gpu"]
        if parts is None:
            return
        if values["device"] != "cuda":
            raise CannotRun("--split-gpu requires a CUDA GPU")
        if values["world_size"] > parts:
            raise BadInput(
                f"--split-gpu {parts} is for at most {parts} ranks, got world_size {values['world_size']}"
            )
