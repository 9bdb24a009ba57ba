"""What benchmarks take from the tests: the launcher whose costs are known, and a training loop as text."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tests.builders.plain_loop import LoopOptions, plain_loop
from tests.simulated.cluster.model import ClusterModel, Network
from tests.simulated.cluster.truth import LossTruth, truth_of
from tests.simulated.gpu_steps import KINDS as GPU_KINDS
from tests.simulated.gpu_truth import simulated_case
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher
from tests.simulated.noisy_steps import KINDS, noisy_steps

__all__ = [
    "GPU_KINDS",
    "KINDS",
    "TWO_CORES",
    "ClusterModel",
    "CostModel",
    "FakeLauncher",
    "LoopOptions",
    "LossTruth",
    "Network",
    "noisy_steps",
    "plain_loop",
    "simulated_case",
    "truth_of",
]
