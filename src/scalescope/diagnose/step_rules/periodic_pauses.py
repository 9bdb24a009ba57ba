"""Work that is not in every step: evaluations, checkpoints, logging, and what else returns every k steps."""

from scalescope.analysis.events import Event
from scalescope.analysis.training.pauses import REST, PeriodicPauses
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import in_ms
from scalescope.results.result import CHECKPOINT, EVALUATION, LOGGING

RULE = "periodic pauses"
_PARTS = {
    "input": "while waiting for a batch",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    REST: "between steps",
}
_ADVICE = {
    EVALUATION: "evaluate less often, or on fewer batches",
    CHECKPOINT: "save less often, or in the background with torch.distributed.checkpoint.async_save",
    LOGGING: "log less often: each `.item()` and each value that is printed waits for the device",
}
