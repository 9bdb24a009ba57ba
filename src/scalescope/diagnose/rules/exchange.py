"""Rules about the exchange of gradients: what limits it, and what is sent without need."""

from collections.abc import Callable
from typing import NamedTuple

from scalescope.analysis.comm.expected import Expected
from scalescope.analysis.commands import counts_tokens
from scalescope.analysis.scaling.waterfall import COMMUNICATION
from scalescope.diagnose.advice import advise, advise_more, batch_name, comm_command, fewer_bytes
from scalescope.diagnose.exchange import (
    ENOUGH_WORK,
    Cause,
    causes_of,
    holds_giant,
    is_latency,
    is_only_last_exposed,
    rate_of,
    wasted_by_buckets,
)
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.quantities import percent
from scalescope.results.run_commands import CHECK

# ---- The exchange of gradients: a finding for what limits it, and after it for what else is true of it


_ONE_CORE = " Each rank has one core for compute and for gloo's thread, which adds to it."
_SMALLEST = "smallest all-reduce measured"
_OF_BYTES = (Cause.NETWORK, Cause.BANDWIDTH, Cause.LAST_BUCKET, Cause.LITTLE_WORK)
_MOST_NAMES = 3
_MUCH = 0.3  # of all bytes: less is not worth another kind of gradient
_FEW_ROWS = 0.2  # of a table


class _Text(NamedTuple):
    """A finding in words, and the part of what communication costs that it explains."""

    claim: str
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, ...]
    part: float = 1.0


def exchange_rule(facts: Facts) -> tuple[Finding | Abstention, ...]:
    lost, causes = facts.communication_lost, causes_of(facts)
    if not lost:
        return ()
    texts = [_with_names(facts, cause, _TEXTS[cause](facts)) for cause in causes]
    findings = (
        Finding(
            rule=cause.value,
            terms=(COMMUNICATION,) if facts.communication_is_measured else (),
            claim=text.claim,
            lost=text.part * lost,
            share=text.part * lost / facts.ranks,
            # The cause stands before what it explains, also where that is counted as more. It is not known
            # to be the cause where the exchange was not measured.
            root=cause is causes[0] and facts.exchange_s is not None,
            symptom=text.part > texts[0].part,
            evidence=text.evidence,
            advice=text.advice,
        )
        for cause, text in zip(causes, texts, strict=True)
    )
    undecided = _undecided(facts)
    return (*findings, undecided) if undecided else tuple(findings)


def _with_names(facts: Facts, cause: Cause, text: _Text) -> _Text:
    """With the parameters that most of the bytes belong to, where bytes are what takes time."""
    total = facts.gradient_bytes
    known = [parameter for parameter in facts.largest_parameters[:_MOST_NAMES] if parameter.name]
    if cause not in _OF_BYTES or not total or not known:
        return text
    names = ", ".join(f"{p.name} ({percent(p.size_bytes / total)})" for p in known)
    first, share = known[0], known[0].size_bytes / total
    claim = f"{text.claim} The largest parameters by bytes: {names}."
    evidence = Evidence(name=f"share of {first.name}", value=share, source="the model's parameters")
    if first.changed_share is None or first.changed_share > _FEW_ROWS or share < _MUCH:
        return text._replace(claim=claim, evidence=(*text.evidence, evidence))
    rows = percent(first.changed_share) if first.changed_share >= 0.005 else "less than 1 %"
    return text._replace(
        claim=f"{claim} A step changes {rows} of the rows of {first.name} but sends all of them.",
        evidence=(
            *text.evidence,
            evidence,
            Evidence(name="rows changed per step", value=first.changed_share, source="one step's gradient"),
        ),
        advice=(*_only_rows(facts, first.name), *text.advice),
    )


def _only_rows(facts: Facts, name: str) -> tuple[Advice, ...]:
    """gloo sends sparse gradients, NCCL does not."""
    if facts.trial.on_gpu:
        return ()
    label = f"send only changed rows: nn.Embedding(sparse=True) for {name}, with SGD or SparseAdam"
    return (Advice(label=label),)


def _undecided(facts: Facts) -> Abstention | None:
    """What would have to be known to say more."""
    latency, expected, trial = is_latency(facts), facts.expected, facts.trial
    missing, measure = "", comm_command(facts, "--collective", "all_reduce")
    if facts.exchange_s is None or facts.sent_bytes is None:
        missing = "the bandwidth of exchanges as large as the gradients"
    elif latency is None:
        missing = "the latency of the smallest exchange"
    elif not facts.transfer_explains_wait:
        missing, measure = "why ranks wait (far longer than sending takes)", ()
    if missing:
        return Abstention(rule=Cause.BANDWIDTH.value, missing=missing, argv=measure)
    if latency or expected is None or isinstance(expected, Expected) or trial.link is not None:
        return None
    if expected.is_loopback or trial.split_gpu or trial.oversubscribe:
        return None  # nobody publishes what gloo reaches inside a host: there is nothing to wait for
    missing = f"the expected bandwidth of this network ({expected.missing})"
    return Abstention(rule=Cause.NETWORK.value, missing=missing, argv=CHECK)


def _network(facts: Facts) -> _Text:
    expected, rate = facts.expected, rate_of(facts)
    assert isinstance(expected, Expected)
    return _Text(
        f"Gradients travel at {rate / 1e9:,.2f} GB/s; {expected.path} should carry "
        f"{expected.bytes_per_s / 1e9:,.0f} GB/s (source: {expected.source}).",
        evidence=(
            Evidence(name="bus bandwidth", value=rate, unit="bytes/s", source=facts.exchange_source),
            Evidence(name="expected", value=expected.bytes_per_s, unit="bytes/s", source=expected.source),
        ),
        advice=(
            Advice(label="check the path that NCCL uses", argv=CHECK),
            Advice(label="measure every pair", argv=comm_command(facts, "--pairs")),
        ),
    )


def _bandwidth(facts: Facts) -> _Text:
    lost, exchange_s, sent = facts.communication_lost, facts.exchange_s, facts.sent_bytes
    assert lost is not None and exchange_s is not None and sent is not None
    rate, source, apart = rate_of(facts), facts.exchange_source, facts.communication_is_measured
    most = "" if apart else "at most "
    by = "step minus the same step without communication" if apart else "loss not explained by other terms"
    return _Text(
        f"Sending {sent / 1e6:.1f} MB of gradients takes {exchange_s * 1e3:.0f} ms at "
        f"{rate / 1e6:,.1f} MB/s{_of_the_expected(facts, rate)}; waiting for it costs {most}{lost:.2f} of "
        f"{facts.ranks} ranks.",
        evidence=(
            Evidence(name="gradients sent", value=sent, unit="bytes", source="the model's parameters"),
            Evidence(name="exchange", value=exchange_s, unit="s", source=source),
            Evidence(name="bus bandwidth", value=rate, unit="bytes/s", source=source),
            Evidence(name="exposed", value=lost, unit="ranks", source=by),
        ),
        advice=fewer_bytes(facts),
    )


def _of_the_expected(facts: Facts, rate: float) -> str:
    """The rate as a share of what it should be, in words; empty where that is unknown."""
    if not isinstance(facts.expected, Expected):
        return ""
    share, path = rate / facts.expected.bytes_per_s, facts.expected.path
    return f", {percent(share)} of what {path} should carry" if share < 0.9 else f", what {path} should carry"


def _latency(facts: Facts) -> _Text:
    count, latency_s = len(facts.bucket_bytes or (1,)), facts.latency_s
    assert latency_s is not None
    larger = advise_more(facts, "larger buckets, fewer exchanges", "bucket_cap_mb", 100.0)
    return _Text(
        f"Exchanges are so small that their latency dominates: {count} per step, about "
        f"{latency_s * 1e6:,.0f} µs each.{_ONE_CORE if facts.trial.gloo_shares_core else ''}",
        evidence=(
            Evidence(name="latency", value=latency_s, unit="s", source=_SMALLEST),
            Evidence(name="buckets", value=count, source="DDP"),
        ),
        advice=(*(larger if count > 1 else ()), *_more_compute(facts)),
    )


def _more_compute(facts: Facts) -> tuple[Advice, ...]:
    return (
        *advise(facts, "compute more per exchange", batch_name(facts)),
        *advise(facts, "exchange less often", "accumulation_steps"),
    )


def _small_model(facts: Facts) -> _Text:
    gradient, compute_s, latency_s = facts.gradient_bytes, facts.compute_s, facts.latency_s
    assert gradient is not None and compute_s is not None and latency_s is not None
    return _Text(
        f"A step of this model ({gradient / 1e3:,.0f} kB of parameters) computes for "
        f"{compute_s * 1e3:.2f} ms, and an exchange takes at least {latency_s * 1e3:.2f} ms.",
        evidence=(
            Evidence(name="gradients", value=gradient, unit="bytes", source="the model"),
            Evidence(name="compute", value=compute_s, unit="s", source="one rank alone"),
            Evidence(name="latency", value=latency_s, unit="s", source=_SMALLEST),
        ),
        advice=_more_compute(facts),
    )


def _small_buckets(facts: Facts) -> _Text:
    buckets, exchange_s, at_once_s = facts.bucket_bytes, facts.exchange_s, facts.exchange_at_once_s
    assert buckets is not None and exchange_s is not None and at_once_s is not None
    return _Text(
        f"Sending {len(buckets)} buckets takes {exchange_s * 1e3:.1f} ms; one bucket would take "
        f"{at_once_s * 1e3:.1f} ms.",
        part=wasted_by_buckets(facts),
        evidence=(
            Evidence(name="buckets", value=len(buckets), source="DDP"),
            Evidence(name="in buckets", value=exchange_s, unit="s", source=facts.exchange_source),
            Evidence(name="at once", value=at_once_s, unit="s", source=facts.exchange_source),
        ),
        advice=advise_more(facts, "larger buckets", "bucket_cap_mb", 50.0),
    )


def _last_bucket(facts: Facts) -> _Text:
    buckets = facts.bucket_bytes
    assert buckets
    last, total = buckets[-1], sum(buckets)
    gradients = (
        "All gradients are in one"
        if len(buckets) == 1
        else f"{percent(last / total)} of the gradients are in the last"
    )
    smaller = advise(facts, "smaller buckets are sent earlier", "bucket_cap_mb")
    return _Text(
        f"{gradients} bucket ({last / 1e6:.1f} MB), which is sent when the "
        "backward pass is over and no compute is left to hide it.",
        # What smaller buckets could hide depends on when gradients are ready: at most half is claimed.
        part=1.0 if is_only_last_exposed(facts) else last / total / 2.0,
        evidence=(
            Evidence(name="last bucket", value=last, unit="bytes", source="DDP"),
            Evidence(name="all buckets", value=total, unit="bytes", source="DDP"),
        ),
        advice=fewer_bytes(facts) if holds_giant(facts) else smaller,
    )


def _little_work(facts: Facts) -> _Text:
    compute_s, exchange_s, batch = facts.compute_s, facts.exchange_s, facts.row.batch
    assert compute_s is not None and exchange_s is not None
    wanted_s = ENOUGH_WORK * exchange_s
    enough = max(2 * batch, 1 << max(1, round(batch * wanted_s / compute_s) - 1).bit_length())
    of_that = f"about {enough:,} tokens" if counts_tokens(facts.trial) else f"a batch of about {enough:,}"
    return _Text(
        f"A step computes for {compute_s * 1e3:.1f} ms and its exchange takes {exchange_s * 1e3:.1f} "
        f"ms; {of_that} would compute for {wanted_s * 1e3:.0f} ms, which can hide it.",
        evidence=(
            Evidence(name="compute", value=compute_s, unit="s", source="one rank alone"),
            Evidence(name="exchange", value=exchange_s, unit="s", source=facts.exchange_source),
        ),
        advice=(
            *advise(facts, "a larger batch", batch_name(facts), enough),
            *advise(facts, "exchange less often", "accumulation_steps"),
        ),
    )


_TEXTS: dict[Cause, Callable[[Facts], _Text]] = {
    Cause.NETWORK: _network,
    Cause.BANDWIDTH: _bandwidth,
    Cause.LATENCY: _latency,
    Cause.SMALL_MODEL: _small_model,
    Cause.SMALL_BUCKETS: _small_buckets,
    Cause.LAST_BUCKET: _last_bucket,
    Cause.LITTLE_WORK: _little_work,
}


# ---- fp32 gradients under autocast: compute got faster, the exchange did not


AMP_GRADIENTS = "gradients in fp32 under autocast"


def amp_gradients_rule(facts: Facts) -> Finding | Abstention | None:
    trial = facts.trial
    lost = facts.lost(COMMUNICATION)
    if not lost or trial.precision not in ("bf16", "fp16"):
        return None
    if not trial.has_setting("comm_hook") or trial.comm_hook != "none":
        return None
    return Finding(
        rule=AMP_GRADIENTS,
        terms=(COMMUNICATION,),
        claim=f"{trial.precision} made compute faster, but gradients are still sent in fp32.",
        lost=lost / 2,
        share=lost / 2 / facts.ranks,
        evidence=(Evidence(name="precision", value=trial.precision, source="settings"),),
        advice=advise(facts, "send gradients in 16 bits", "comm_hook", "bf16"),
    )


# ---- find_unused_parameters on: a walk through the graph and an exchange in every step


UNUSED_PARAMETERS = "find_unused_parameters is on"


def unused_parameters_rule(facts: Facts) -> Finding | Abstention | None:
    trial = facts.trial
    if not trial.is_on("find_unused_parameters") or trial.is_on("static_graph"):
        return None
    return Finding(
        rule=UNUSED_PARAMETERS,
        claim="DDP searches for unused parameters in every step, does not rebuild its buckets, and makes one "
        "more exchange.",
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="find_unused_parameters", value="true", source="settings"),),
        advice=advise(facts, "switch it off if every parameter is used", "find_unused_parameters", "no"),
    )
