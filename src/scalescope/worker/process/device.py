"""Which device a rank computes on, and its description for people."""

import os
import socket

import torch

from scalescope.inspection import cpu_model
from scalescope.results.topology import core_list


def choose_device(kind: str, local_rank: int) -> torch.device:
    """The rank's device: GPUs by local rank, starting over if there are fewer GPUs than ranks."""
    if kind != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def device_identity(device: torch.device) -> str | None:
    """Host and GPU, which no two ranks may share; None on a CPU, where ranks have cores instead."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", device.index)
    return f"GPU {uuid} of {socket.gethostname()}"


def placement_counters(device: torch.device) -> dict[str, str | int]:
    """Where this rank really runs: its threads, the cores that it may use, its GPU; only what is known."""
    counters: dict[str, str | int] = {"threads": torch.get_num_threads()}
    if hasattr(os, "sched_getaffinity"):
        counters["affinity"] = core_list(os.sched_getaffinity(0))
    if device.type == "cuda":
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        counters |= {"gpu": device_name(device)} | ({} if uuid is None else {"gpu_uuid": str(uuid)})
    return counters


def describe_placement(rank: int, local_rank: int, device: torch.device, cpus: list[int]) -> str:
    """The placement line of a rank."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    line = (
        f"[Rank {rank}] CUDA_VISIBLE_DEVICES={visible}, LOCAL_RANK={local_rank}, "
        f"current_device={device}, name={device_name(device)}"
    )
    if device.type == "cpu":
        cores = ",".join(map(str, cpus)) if cpus else "any"
        line += f", cores={cores}, threads={torch.get_num_threads()}"
    return line
