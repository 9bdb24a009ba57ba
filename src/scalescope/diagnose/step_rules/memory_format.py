"""NCHW convolutions: kernels reorder images before and after convolutions that compute in NHWC."""

from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import KERNEL_TERMS, StepFacts
from scalescope.quantities import in_ms

RULE = "images are reordered for convolutions"


def rule(facts: StepFacts) -> Finding | Abstention | None:
    recording, trial = facts.recording, facts.trial
    if not trial.on_gpu or trial.is_channels_last:
        return None
    if recording is None or recording.layout_s is None or not recording.convolution_s:
        return None
    saved_s = facts.of_kernels(recording.layout_s)
    if not facts.is_worth(saved_s):
        return None
    return facts.finding(
        RULE,
        f"Images are stored channel by channel (NCHW), but the convolutions compute on interleaved channels "
        f"(NHWC): reordering takes {in_ms(recording.layout_s)} per step, next to "
        f"{in_ms(recording.convolution_s)} of convolutions. At least that is saved.",
        saved_s,
        estimated=True,
        terms=KERNEL_TERMS,
        evidence=(
            Evidence(name="reordering", value=recording.layout_s, unit="s", source="recorded steps"),
            Evidence(name="convolutions", value=recording.convolution_s, unit="s", source="recorded steps"),
        ),
        advice=_advice(facts),
    )


def _advice(facts: StepFacts) -> tuple[Advice, ...]:
    owner = "script" if facts.trial.is_command else "workload"
    lines = f"in the {owner}: model.to(memory_format=torch.channels_last), and the same for images"
    if facts.trial.is_command:
        return (Advice(label=lines),)
    return (
        *advise(facts, "store images with interleaved channels", "memory_format", "channels_last"),
        *((Advice(label=lines),) if facts.trial.workload_card.brings_data else ()),
    )
