"""What is known of the job that is tuned: recorded steps, and what its script does already."""

import statistics
from collections.abc import Iterable, Mapping

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.recording import StepRecording, fitted, recordings_of
from scalescope.analysis.training.activity import activities_of
from scalescope.analysis.training.input import LoaderFacts, loading_of
from scalescope.analysis.training.model_facts import model_facts
from scalescope.analysis.training.step_waterfall import (
    COMPUTE,
    COPIES,
    IDLE_BETWEEN,
    IDLE_HOST,
    IDLE_INPUT,
    IDLE_SYNC,
    IDLE_UNKNOWN,
    OPTIMIZER,
    REST,
    step_waterfall,
)
from scalescope.analysis.tuning.step_model import StepParts, parts_of_step
from scalescope.catalog.setting import Need, Part
from scalescope.experiment.explanations import only_explains, without_communication
from scalescope.experiment.trial import Trial, Value
from scalescope.results.ranks import OBSERVED
from scalescope.results.result import RankRecord, Result
from scalescope.studies.tuning.levers import Candidate

# ---- Levers that do what a script does already, as the launches of its current settings showed


def already_in_script(
    results: Iterable[Result], baseline: Trial, candidates: Mapping[str, Candidate]
) -> dict[str, str]:
    """Candidates by name, with the reason; not those that were asked for."""
    records = [r.ranks[0] for r in results if r.status == "ok" and r.trial_id == baseline.trial_id]
    if not baseline.is_command or not records:
        return {}
    reasons = {
        text: _why_already(records[0], candidate.name, candidate.value)
        for text, candidate in candidates.items()
        if not candidate.asked
    }
    return {text: reason for text, reason in reasons.items() if reason is not None}


def _why_already(record: RankRecord, name: str, value: Value) -> str | None:
    """Why a setting at a value is of no use to a script; None where it may be, or nothing is known."""

    def fact(of: str) -> float | int | str | None:
        return record.counters.get(f"{OBSERVED}{of}")

    if name == "precision":
        if fact("autocast") is not None:  # what it leaves in fp32 gains little from tf32
            return f"the script already uses {fact('autocast')} autocast"
        if fact("parameter_format") is not None:
            return f"the script's model already computes in {fact('parameter_format')}"
        return "the script already allows tf32" if value == "tf32" and fact("tf32") == 1 else None
    if name == "compile":
        return "the script already compiles its model" if fact("compiled") == 1 else None
    if name == "fused_optimizer":
        if fact("fused") == 1:
            return "the script's optimizer is already fused"
        return "torch cannot fuse the script's optimizer" if fact("fusible") == 0 else None
    if name == "num_workers":
        has_as_many = value is not None and fact("loader_workers") == value
        return f"the script's DataLoader already has {value} worker processes" if has_as_many else None
    if name == "pin_memory" and value is True:
        return "the script already pins its batches" if fact("loader_pinned") == 1 else None
    if name == "persistent_workers" and value is True:
        return "the script already keeps its workers" if fact("loader_persistent") == 1 else None
    return None


# ---- What the launches of a search show of a step: the shares by which levers are ordered


_BARE_SHARE = 0.75  # of a bare matrix product's speed that the products of a model usually reach
_COPIED_PER_S = {False: 6e9, True: 2e10}  # bytes, from pageable and from page-locked memory
_USUAL_COMMUNICATION = 0.3  # of a step of several ranks
_USUAL_CONVOLUTIONS = 0.8  # of the products of a model that has convolutions, as long as nothing tells
_HIDDEN_HOST = 0.5  # of the compute: the host's work that hides behind it
_HOST_BOUND = 0.05  # of the step: a GPU that waits longer for the host is limited by it
_LEAST_PRODUCTS, _MOST_PRODUCTS = 0.2, 0.95


def parts_of_trial(results: Iterable[Result], trial: Trial, baseline: Trial) -> StepParts | None:
    """The parts of a trial's step as shares of it; None where no launch of it is finished.

    Where its steps were recorded, they are those of the breakdown.
    """
    recorded = recordings_of(results := list(results)).get(trial.trial_id)
    results = [result for result in results if not only_explains(result.trial) or result.trial.is_ablation]
    measured = {configuration.trial.trial_id: configuration for configuration in configurations(results)}
    configuration = measured.get(trial.trial_id)
    if configuration is None:
        return None
    step_s = configuration.step_time_s.value
    host_s = _host_s(results, trial)
    loading = _loading(results, trial)
    batches = max(1.0, trial.settings.get("accumulation_steps") or 1.0)
    input_share = min(1.0, batches * (loading.wait_s or 0.0) / step_s) if loading else 0.0
    copy_share = _copy_share(loading, step_s / batches) if trial.on_gpu else 0.0
    busy = configuration.telemetry.gpu_utilization if trial.on_gpu else None
    if busy is not None:
        input_share = min(input_share, max(0.0, 1.0 - busy))  # what a busy GPU waits for is not input
        copy_share = min(copy_share, max(0.0, 1.0 - busy - input_share))
    communication_share = _communication_share(measured, trial, baseline)
    if recorded is not None and trial.world_size == 1:
        return _recorded_parts(configuration, recorded, loading, batches)
    computing_s = step_s * max(0.0, 1.0 - input_share - copy_share - communication_share)
    prepare_s = None if loading is None else loading.prepare_s
    process_s = None if loading is None else loading.process_s
    return parts_of_step(
        input_share=input_share,
        copy_share=copy_share,
        communication_share=communication_share,
        busy_share=busy,
        products_share=_products_share(configuration),
        convolution_share=_USUAL_CONVOLUTIONS if _has_convolutions(results, trial) else 0.0,
        optimizer_share=None if trial.on_gpu else _optimizer_share(host_s, computing_s),
        prepare_share=None if prepare_s is None else batches * prepare_s / step_s,
        process_share=None if process_s is None else batches * process_s / step_s,
        processes=0 if loading is None else loading.workers or 0,
    )


def _recorded_parts(
    configuration: Configuration, recording: StepRecording, loading: LoaderFacts | None, batches: float
) -> StepParts | None:
    """The parts of a step as its waterfall has them."""
    waterfall = step_waterfall(configuration, recording, ())
    if waterfall is None:
        return None
    step_s, time_s = waterfall.step_s, waterfall.time_s
    compute_s = sum(map(time_s, COMPUTE))
    products_s = min(recording.matrix_product_s or 0.0, compute_s)
    convolutions_s = min(recording.convolution_s or 0.0, products_s)
    layout_s = min(recording.layout_s or 0.0, compute_s - products_s)  # only convolutions need that
    optimizer_s = min(time_s(OPTIMIZER), compute_s - products_s - layout_s)
    replay = fitted(recording.replays, step_s)
    idle_s = time_s(IDLE_HOST) + time_s(IDLE_BETWEEN)
    hidden_s = replay.fast_gpu_s if replay is not None else _HIDDEN_HOST * compute_s
    waits_s = time_s(IDLE_SYNC)  # after a copy from pageable memory, which waits for the GPU, or a line
    copies_wait = bool(recording.pageable_copies) and not recording.frequent_waits
    input_s, processes = time_s(IDLE_INPUT), 0 if loading is None else loading.workers or 0
    prepare_s = None if loading is None or loading.prepare_s is None else batches * loading.prepare_s
    process_s = None if loading is None or loading.process_s is None else batches * loading.process_s
    hidden_prepare_s = 0.0 if processes else min(max(0.0, (prepare_s or 0.0) - input_s), compute_s)
    host_s = compute_s + idle_s if idle_s > _HOST_BOUND * step_s else min(hidden_s, compute_s)
    times: dict[Part, float] = {
        "products": products_s - convolutions_s,
        "convolutions": convolutions_s + layout_s,
        "kernels": compute_s - products_s - layout_s - optimizer_s,
        "optimizer": optimizer_s,
        "host": max(0.0, min(host_s, compute_s + idle_s - hidden_prepare_s)),
        "prepare": input_s if not processes or prepare_s is None else prepare_s,
        "copy": time_s(COPIES) + (waits_s if copies_wait else 0.0),
        "communication": 0.0,
    }
    rest_s = time_s(IDLE_UNKNOWN) + time_s(REST) + (0.0 if copies_wait else waits_s)
    return StepParts(
        times={part: value / step_s for part, value in times.items()},
        processes=processes,
        hidden_prepare=hidden_prepare_s / step_s,
        process_prepare=None if process_s is None else process_s / step_s,
        rest=rest_s / step_s,
    )


def _has_convolutions(results: Iterable[Result], trial: Trial) -> bool:
    ranks = next((r.ranks for r in results if r.status == "ok" and r.trial_id == trial.trial_id), ())
    return any(model_facts(record).convolutions for record in ranks[:1])


def _loading(results: Iterable[Result], trial: Trial) -> LoaderFacts | None:
    """The loader of the trial's first launch."""
    ranks = next((r.ranks for r in results if r.status == "ok" and r.trial_id == trial.trial_id), ())
    return loading_of(ranks)


def _copy_share(loading: LoaderFacts | None, batch_s: float) -> float:
    """The share of copying a batch, from its bytes: the host's clock also counts waiting for the GPU."""
    if loading is None or not loading.batch_bytes:
        return 0.0
    return min(0.5, loading.batch_bytes / _COPIED_PER_S[bool(loading.pinned)] / batch_s)


def _optimizer_share(host_s: dict[str, float], computing_s: float) -> float | None:
    """The optimizer as a share of computing, on the CPU; None where it is not known."""
    if "optimizer" not in host_s or not computing_s:
        return None
    return min(1.0, host_s["optimizer"] / computing_s)


def absent_needs(results: Iterable[Result], baseline: Trial) -> dict[Need, str]:
    """What levers may need and the baseline's launch showed to be absent, with the reason in words."""
    records = [r.ranks[0] for r in results if r.status == "ok" and r.trial_id == baseline.trial_id]
    if not records:
        return {}
    absent: dict[Need, str] = {}
    if model_facts(records[0]).convolutions == 0:
        absent["convolutions"] = "the model has no convolutions"
    return absent | (_absent_in_command(records[0]) if baseline.is_command else {})


def _absent_in_command(record: RankRecord) -> dict[Need, str]:
    """What the script turned out to do without; what its rank could not see may be there."""
    counters = record.counters
    absent: dict[Need, str] = {}
    if counters.get(f"{OBSERVED}wrapper") not in (None, "ddp"):
        absent["ddp"] = "the script does not use DistributedDataParallel"
    if counters.get(f"{OBSERVED}loader") == 0:
        absent["loader"] = "the script does not use a DataLoader"
    if counters.get(f"{OBSERVED}loader_workers") == 0:
        absent["workers"] = "the script's DataLoader has no worker processes"
    return absent


def _host_s(results: Iterable[Result], trial: Trial) -> dict[str, float]:
    """The host's time by part of a step: the mean over the ranks of the first launch."""
    ranks = next(iter(activities_of(results, trial)), ())
    known = [activity.host_s for activity in ranks if activity.host_s]
    names = {name for host_s in known for name in host_s}
    return {name: statistics.fmean(host_s.get(name, 0.0) for host_s in known) for name in names}


def _communication_share(measured: dict[str, Configuration], trial: Trial, baseline: Trial) -> float:
    """The share of a step that is exposed communication, by the baseline without it.

    The time of communication in the baseline is what other combinations have too, as far as is known. Where
    it was not measured, a usual share keeps levers of communication among those that are tried.
    """
    if trial.world_size == 1:
        return 0.0
    silent = without_communication(baseline)
    if silent is None or baseline.trial_id not in measured or silent.trial_id not in measured:
        return _USUAL_COMMUNICATION
    exposed_s = measured[baseline.trial_id].step_time_s.value - measured[silent.trial_id].step_time_s.value
    step_s = measured[trial.trial_id].step_time_s.value
    return min(0.95, max(0.0, exposed_s) / step_s)


def _products_share(configuration: Configuration) -> float | None:
    """Matrix products as a share of the device's work, from the speed against a bare product."""
    if configuration.bare_product_share is None:
        return None
    return min(_MOST_PRODUCTS, max(_LEAST_PRODUCTS, configuration.bare_product_share / _BARE_SHARE))
