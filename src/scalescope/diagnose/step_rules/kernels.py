"""Rules about kernels of a step: formats, shapes and orders that cost time, and work that is done twice."""

from collections.abc import Sequence

from scalescope.analysis.recording import PaddedProduct, StepRecording
from scalescope.analysis.training.step_waterfall import (
    BACKWARD,
    IDLE_HOST,
    IDLE_SYNC,
    OPTIMIZER,
    OTHER_KERNELS,
)
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import HOST_TERMS, KERNEL_TERMS, StepFacts
from scalescope.quantities import data_size, in_ms, milliseconds, percent, significant
from scalescope.results.traces import step_parts

# ---- Tensor cores idle: products on a GPU that do not use its units for shorter formats


MATRIX_UNITS = "matrix units are idle"
_MOSTLY = 0.5  # of the products' time: less may be kernels that their names do not tell apart


def matrix_units_rule(facts: StepFacts) -> Finding | Abstention | None:
    if not facts.trial.on_gpu:
        return None
    if facts.trial.is_command:
        return _of_command(facts)
    if facts.trial.precision != "fp32":
        return _despite_precision(facts)
    formats = facts.short_formats
    if formats is None:
        return Abstention(rule=MATRIX_UNITS, missing="the number formats that the GPU's matrix units support")
    if not formats:
        return None
    slow_s = _slow_s(facts)
    return _by_settings(facts, formats) if slow_s is None else _by_recording(facts, formats, slow_s)


def _of_command(facts: StepFacts) -> Finding | None:
    """The format that a script computes in shows in recorded kernels alone."""
    slow_s, formats = _slow_s(facts), facts.short_formats
    if slow_s is None or not formats or slow_s < _MOSTLY * _products_s(facts):
        return None
    return _by_recording(facts, formats, slow_s)


def _products_s(facts: StepFacts) -> float:
    return (facts.recording.matrix_product_s if facts.recording is not None else None) or 0.0


def _slow_s(facts: StepFacts) -> float | None:
    """Products outside matrix units; None where no recording tells."""
    recording = facts.recording
    if recording is None or recording.matrix_product_s is None or recording.matrix_unit_s is None:
        return None
    return max(0.0, recording.matrix_product_s - recording.matrix_unit_s)


def _speed_of(facts: StepFacts, formats: Sequence[str]) -> tuple[str, float] | None:
    """The first of the formats whose bare product is faster than in fp32, and how many times; the last of
    them where none is. None where their speed is unknown."""
    rates = (facts.recording.product_flops_per_s if facts.recording is not None else None) or {}
    times = [(name, rates[name] / rates["fp32"]) for name in formats if name in rates and rates.get("fp32")]
    return next((pair for pair in times if pair[1] > 1.0), times[-1] if times else None)


def _by_settings(facts: StepFacts, formats: Sequence[str]) -> Finding:
    *others, last = formats
    names = f"{', '.join(others)} and {last} do" if others else f"{last} does"
    exchange = "" if facts.ranks == 1 else " This speeds up compute, but not the exchange of gradients."
    return facts.finding(
        MATRIX_UNITS,
        f"fp32 products do not use the GPU's matrix units; {names}.{exchange}",
        None,
        evidence=(Evidence(name="precision", value="fp32", source="settings"),),
        advice=_formats(facts, formats),
    )


def _by_recording(facts: StepFacts, formats: Sequence[str], slow_s: float) -> Finding | None:
    speed = _speed_of(facts, formats)
    if speed is None:
        return _by_settings(facts, formats) if facts.is_worth(slow_s) else None
    name, times = speed
    cost_s = facts.of_kernels(slow_s * (1.0 - 1.0 / times))
    if not facts.is_worth(cost_s):
        return None
    return facts.finding(
        MATRIX_UNITS,
        f"Matrix products and convolutions take {in_ms(slow_s)} per step in fp32 without the GPU's "
        f"matrix units. A bare product in {name} is {times:.1f} times as fast, which would save about "
        f"{in_ms(cost_s)}.",
        cost_s,
        estimated=True,
        terms=KERNEL_TERMS,
        evidence=_evidence(facts, slow_s, times),
        advice=_formats(facts, formats),
    )


def _despite_precision(facts: StepFacts) -> Finding | None:
    """A short format was asked for, but most products do not use it."""
    recording, slow_s, precision = facts.recording, _slow_s(facts), facts.trial.precision
    if recording is None or slow_s is None or slow_s < _MOSTLY * (recording.matrix_product_s or 0.0):
        return None
    speed = _speed_of(facts, (precision,))
    cost_s = 0.0 if speed is None else facts.of_kernels(slow_s * (1.0 - 1.0 / speed[1]))
    if speed is None or not facts.is_worth(cost_s):
        return None
    total_s = recording.matrix_product_s or 0.0
    return facts.finding(
        MATRIX_UNITS,
        f"The precision is {precision}, but {milliseconds(slow_s)} of {in_ms(total_s)} of products per "
        f"step do not use matrix units, which would save about {in_ms(cost_s)}.",
        cost_s,
        estimated=True,
        terms=KERNEL_TERMS,
        evidence=_evidence(facts, slow_s, speed[1]),
        advice=(
            Advice(
                label="look for layers outside autocast (autocast(enabled=False), .float()) and for sizes "
                "that are not multiples of 8"
            ),
        ),
    )


def _evidence(facts: StepFacts, slow_s: float, times: float) -> tuple[Evidence, ...]:
    return (
        Evidence(name="precision", value=facts.trial.precision, source="settings"),
        Evidence(name="products without matrix units", value=slow_s, unit="s", source="recorded steps"),
        Evidence(name="speed of a bare product against fp32", value=times, source="measured in this run"),
    )


def _formats(facts: StepFacts, formats: Sequence[str]) -> tuple[Advice, ...]:
    """To try each of the formats; a script may not scale its loss, as fp16 requires."""
    names = [name for name in formats if name != "fp16" or not facts.trial.is_command]
    return tuple(
        advice for name in names for advice in advise(facts, f"compute in {name}", "precision", name)
    )


# ---- NCHW convolutions: kernels reorder images before and after convolutions that compute in NHWC


MEMORY_FORMAT = "images are reordered for convolutions"


def memory_format_rule(facts: StepFacts) -> Finding | Abstention | None:
    recording, trial = facts.recording, facts.trial
    if not trial.on_gpu or trial.is_channels_last:
        return None
    if recording is None or recording.layout_s is None or not recording.convolution_s:
        return None
    saved_s = facts.of_kernels(recording.layout_s)
    if not facts.is_worth(saved_s):
        return None
    return facts.finding(
        MEMORY_FORMAT,
        f"Images are stored channel by channel (NCHW), but the convolutions compute on interleaved channels "
        f"(NHWC): reordering takes {in_ms(recording.layout_s)} per step, next to "
        f"{in_ms(recording.convolution_s)} of convolutions. Storing images as NHWC saves at least that.",
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


# ---- Small kernels: the GPU is busy, but with element-by-element kernels that could be fused


SMALL_KERNELS = "many small kernels"
_WORTH = 0.1  # of a step: the cost is an upper guess
_IDLE = 0.2  # of a step: beyond that the host decides, and not what kernels do
_CHAIN = 1.5  # kernels at least, in the mean: shorter chains are not worth fusing
_TRAFFIC_SAVED = 5.0 / 6.0


def small_kernels_rule(facts: StepFacts) -> Finding | Abstention | None:
    recording, trial = facts.recording, facts.trial
    if not trial.on_gpu or recording is None or trial.is_compiled or _idle_share(facts) > _IDLE:
        return None
    kernels, time_s = recording.elementwise_kernels, recording.elementwise_s
    if not kernels or time_s is None or recording.kernels is None:
        return None
    chains = _chains(recording.kernels, kernels, recording.optimizer_kernels or 0.0)
    if kernels < _CHAIN * chains:
        return None
    saved_s = facts.of_kernels(_TRAFFIC_SAVED * (1.0 - chains / kernels) * time_s)
    if saved_s < _WORTH * facts.step_s:
        return None
    return facts.finding(
        SMALL_KERNELS,
        f"{kernels:,.0f} of {recording.kernels:,.0f} kernels per step are elementwise, "
        f"{in_ms(time_s)} together, and each reads and writes GPU memory. Fusing them would save "
        f"about {in_ms(saved_s)}.",
        saved_s,
        estimated=True,
        terms=KERNEL_TERMS,
        evidence=_small_kernels_evidence(recording, kernels, time_s),
        advice=advise(facts, "fuse kernels with torch.compile", "compile", "default"),
    )


def _chains(kernels: float, elementwise: float, of_optimizer: float) -> float:
    """At most: between any two kernels of the model that are something else."""
    return max(0.0, kernels - elementwise - of_optimizer) + 1.0


def _idle_share(facts: StepFacts) -> float:
    """Of a step, in which the GPU waits for the host."""
    if facts.waterfall is not None:
        idle_s = facts.waterfall.time_s(IDLE_HOST) + facts.waterfall.time_s(IDLE_SYNC)
        return idle_s / facts.waterfall.step_s
    assert facts.recording is not None
    parts = facts.recording.parts
    idle_s = parts.get(step_parts.IDLE_HOST, 0.0) + parts.get(step_parts.IDLE_SYNC, 0.0)
    return idle_s / facts.recording.recorded_step_s


def _small_kernels_evidence(recording: StepRecording, kernels: float, time_s: float) -> tuple[Evidence, ...]:
    median = recording.kernel_median_s
    return (
        Evidence(name="element-by-element kernels", value=kernels, unit="per step", source="recorded steps"),
        Evidence(name="their time", value=time_s, unit="s", source="recorded steps"),
        *(
            ()
            if median is None
            else (Evidence(name="median kernel", value=median, unit="s", source="recorded steps"),)
        ),
    )


# ---- Slow products: matrix products whose shapes do not fill rows of matrix units, timed next to padded ones


SLOW_PRODUCTS = "slow products"


def slow_products_rule(facts: StepFacts) -> Finding | Abstention | None:
    recording = facts.recording
    if recording is None or not recording.padded_products:
        return None
    slow = sorted(recording.padded_products, key=lambda product: -product.saved_s)
    saved_s = facts.of_kernels(sum(product.saved_s for product in slow))
    if not facts.is_worth(saved_s):
        return None
    most = slow[0]
    return facts.finding(
        SLOW_PRODUCTS,
        f"Matrix products with a dimension of {most.odd} are slow, because it is not a multiple of 8: "
        f"{most.operation} of {most.shapes} in {most.number_format} takes {significant(most.time_s * 1e6)} "
        f"µs, and {significant(most.padded_s * 1e6)} µs padded to a multiple of 64. Padding would save "
        f"about {in_ms(saved_s)} per step.",
        saved_s,
        root=True,
        terms=KERNEL_TERMS,
        evidence=tuple(item for product in slow[:3] for item in _slow_products_evidence(product)),
        advice=(
            Advice(label=f"pad {most.odd} to a multiple of 64, such as a vocabulary of 50,257 to 50,304"),
        ),
    )


def _slow_products_evidence(product: PaddedProduct) -> tuple[Evidence, Evidence]:
    name = f"{product.operation} of {product.shapes}"
    return (
        Evidence(name=name, value=product.time_s, unit="s", source="timed alone"),
        Evidence(name=f"{name}, padded", value=product.padded_s, unit="s", source="timed alone"),
    )


# ---- Recomputation: activations are computed twice to save memory that the GPU has


RECOMPUTATION = "activations are computed twice"
_TERMS = (BACKWARD, OTHER_KERNELS, *HOST_TERMS)
_MUCH = 0.5  # of the GPU's memory: where more is in use, activations may not fit


def recomputation_rule(facts: StepFacts) -> Finding | Abstention | None:
    cost_s = recomputation_cost_s(facts)
    used, there = facts.configuration.peak_memory_bytes, facts.gpu_memory_bytes
    if not facts.is_worth(cost_s) or used is None or there is None or used > _MUCH * there:
        return None
    return facts.finding(
        RECOMPUTATION,
        "The backward pass recomputes activations (activation checkpointing), while "
        f"{percent(used / there)} of the GPU's memory is in use: keeping them would save about "
        f"{in_ms(cost_s)}.",
        cost_s,
        root=True,
        estimated=True,
        terms=_TERMS,
        evidence=(
            Evidence(
                name="memory in use", value=used, unit="bytes", source="torch.cuda.max_memory_allocated"
            ),
            Evidence(name="memory", value=there, unit="bytes", source="the GPU"),
            *_time_evidence(facts),
        ),
        advice=(
            Advice(
                label="turn activation checkpointing off, or use it for fewer layers: "
                f"{data_size(there - used)} are free"
            ),
        ),
    )


def recomputation_cost_s(facts: StepFacts) -> float:
    """What a step takes less if nothing is computed twice: its kernels, and what the host takes to launch
    them where the GPU waits for it."""
    if facts.replay is None:
        return 0.0
    return facts.bounded(facts.replay.recomputation_cost_s, *_TERMS)


def _time_evidence(facts: StepFacts) -> tuple[Evidence, ...]:
    time_s = None if facts.recording is None else facts.recording.recomputed_s
    if time_s is None:
        return ()
    return (Evidence(name="kernels that compute again", value=time_s, unit="s", source="recorded steps"),)


# ---- Unfused optimizer: parameters are updated by many passes over memory, where one would do


UNFUSED_OPTIMIZER = "the optimizer is not fused"
_CLASSES = {"sgd": "SGD", "adamw": "AdamW"}  # of the setting
_FUSABLE = {"SGD", "Adam", "AdamW", "Adagrad"}  # what torch has fused, on the CPU and on NVIDIA GPUs
_FUSABLE_SHARDED = {"Adam", "AdamW"}  # for parameters that are cut over the ranks
_SEVERAL_PASSES = {"Adam", "AdamW", "Adagrad"}  # also without momentum
# Adam reads and writes 20 values per parameter unfused and 7 fused, which saves two thirds; less is
# claimed, as no memory is equally fast for both.
_SAVED = 0.5
_UNFUSED_OPTIMIZER_TERMS = (OPTIMIZER, *HOST_TERMS)
_MANY = 3.0  # times the kernels of a fused optimizer
_TENSORS_PER_KERNEL = 30
_VALUES_PER_KERNEL = 20_000_000
_FEW_KERNELS = 4.0  # beside those: counting steps, clearing gradients


def unfused_optimizer_rule(facts: StepFacts) -> Finding | Abstention | None:
    name = _name(facts)
    if not _can_be_fused(facts):
        return None
    time_s, source = _time_s(facts)
    saved_s = fused_cost_s(facts)
    if time_s is None or not facts.is_worth(saved_s):
        return None
    kernels = None if facts.recording is None else facts.recording.optimizer_kernels
    by = f" in {kernels:,.0f} kernels" if facts.trial.on_gpu and kernels else ""
    return facts.finding(
        UNFUSED_OPTIMIZER,
        f"{name} updates the parameters in {in_ms(time_s)} per step{by}, passing over them several "
        f"times. Fused into one pass it would save about {in_ms(saved_s)}.",
        saved_s,
        root=True,
        estimated=True,
        terms=_UNFUSED_OPTIMIZER_TERMS if facts.trial.on_gpu else (OPTIMIZER,),
        evidence=(
            Evidence(name="optimizer", value=time_s, unit="s", source=source),
            *(
                (Evidence(name="optimizer kernels", value=kernels, unit="per step", source="recorded steps"),)
                if kernels
                else ()
            ),
        ),
        advice=_unfused_optimizer_advice(facts, name),
    )


def fused_cost_s(facts: StepFacts) -> float:
    """What is saved if the optimizer is fused: on a GPU by the replay, which has few launches then, and not
    more than what the step takes less without any update; else a share of its time."""
    time_s, _ = _time_s(facts)
    if time_s is None or not _can_be_fused(facts):
        return 0.0
    if facts.replay is None:
        return _SAVED * time_s
    saved_s = facts.bounded(facts.replay.optimizer_cost_s, *_UNFUSED_OPTIMIZER_TERMS)
    return saved_s if facts.optimizer_s is None else min(saved_s, time_s)


def _can_be_fused(facts: StepFacts) -> bool:
    name = _name(facts)
    if name not in _fusable(facts) or _is_fused(facts):
        return False
    return _has_many_kernels(facts) if facts.trial.on_gpu else name in _SEVERAL_PASSES


def _fusable(facts: StepFacts) -> set[str]:
    if facts.configuration.wrapper in ("fsdp1", "fsdp2"):
        return _FUSABLE_SHARDED
    layout = facts.trial.memory_layout
    return _FUSABLE_SHARDED if layout is not None and "parameters" in layout.sharded else _FUSABLE


def _own(facts: StepFacts) -> str | None:
    """The optimizer that a workload brought along."""
    return facts.configuration.launches[0].own_optimizer


def _name(facts: StepFacts) -> str:
    return _own(facts) or _CLASSES.get(facts.trial.optimizer, facts.trial.optimizer)


def _is_fused(facts: StepFacts) -> bool:
    if facts.model.optimizer_is_fused is not None:
        return facts.model.optimizer_is_fused
    is_decided = _own(facts) is None or facts.trial.is_command
    return is_decided and facts.trial.is_on("fused_optimizer")


def _has_many_kernels(facts: StepFacts) -> bool:
    """Whether there are many times the kernels of a fused optimizer; not where none were counted."""
    kernels = None if facts.recording is None else facts.recording.optimizer_kernels
    if kernels is None:
        return False
    tensors, values = facts.model.parameter_tensors or 0, facts.model.parameters or 0
    return kernels > _MANY * (_FEW_KERNELS + tensors / _TENSORS_PER_KERNEL + values / _VALUES_PER_KERNEL)


def _time_s(facts: StepFacts) -> tuple[float | None, str]:
    """What updating parameters takes, and how that is known."""
    measured = facts.optimizer_s
    if measured is not None:
        is_sure = measured.low is None or measured.low > 0.0
        return (measured.value if is_sure else None), "step minus the same without an update"
    if facts.waterfall is not None and (term := facts.waterfall.term(OPTIMIZER)) is not None:
        source = "recorded steps" if term.source == "trace" else "the host's clock around it"
        return term.time_s.value, source
    # On a GPU the host's time is that of launching, and not that of the kernels.
    times_s = [a.host_s["optimizer"] for a in facts.activities if "optimizer" in a.host_s]
    if facts.trial.on_gpu or not times_s:
        return None, ""
    return max(times_s), "the host's clock around it"


def _unfused_optimizer_advice(facts: StepFacts, name: str) -> tuple[Advice, ...]:
    if facts.trial.is_command:
        return (
            *advise(facts, "update all parameters in one pass", "fused_optimizer", True),
            Advice(label=f"in the script: torch.optim.{name}(..., fused=True)"),
        )
    if _own(facts) is not None:
        return (Advice(label=f"in the workload: torch.optim.{name}(..., fused=True)"),)
    return advise(facts, "update all parameters in one pass", "fused_optimizer", True)
