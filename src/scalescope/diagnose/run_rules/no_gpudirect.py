"""No GPUDirect: NCCL copies through host memory though GPU and network card share a PCIe switch."""

from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run import Run
from scalescope.results.run_commands import CHECK
from scalescope.results.topology import topologies_of

RULE = "NCCL does not use GPUDirect RDMA"
_CLOSE = ("PIX", "PXB")  # paths that do not cross the processor


def rule(run: Run, cases: tuple[Facts, ...]) -> Finding | Abstention | None:
    affected = [facts for facts in cases if facts.nccl is not None and facts.nccl.uses_gpudirect is False]
    if not affected:
        return None
    paths = {
        path for topology in topologies_of(run.environment).values() for path in topology.nic_paths.values()
    }
    if not paths:
        return Abstention(rule=RULE, missing="the paths between GPUs and network cards", argv=CHECK)
    if not paths & set(_CLOSE):
        return None  # across the processor it may not be faster
    worst = max(affected, key=lambda facts: facts.communication_lost or 0.0)
    assert worst.nccl is not None
    return Finding(
        rule=RULE,
        claim="NCCL sends through host memory, though GPUs and network cards share a PCIe switch "
        f"({', '.join(sorted(paths & set(_CLOSE)))}): this may limit the bandwidth between nodes.",
        lost=0.0,  # at most what communication costs; a run with GPUDirect would tell
        share=0.0,
        certain=worst.is_sure(COMMUNICATION),
        evidence=(
            Evidence(name="transport", value=", ".join(worst.nccl.network_transports), source="NCCL's log"),
            Evidence(name="paths", value=", ".join(sorted(paths)), source="nvidia-smi topo -m"),
        ),
        advice=(
            Advice(label="load nvidia-peermem or use DMA-BUF, and check NCCL_NET_GDR_LEVEL", argv=CHECK),
        ),
    )
