"""Rules about kernels on a GPU: number formats, memory formats, padding, fusing, and the optimizer."""

from collections.abc import Mapping
from typing import Any

import pytest

from scalescope.analysis.recording import PaddedProduct
from scalescope.analysis.training.model_facts import ModelFacts
from scalescope.analysis.training.step_waterfall import BACKWARD, FORWARD, IDLE_HOST, IDLE_SYNC, OPTIMIZER
from scalescope.diagnose.step_facts import StepFacts
from scalescope.diagnose.step_rules.kernels import (
    matrix_units_rule,
    memory_format_rule,
    slow_products_rule,
    small_kernels_rule,
    unfused_optimizer_rule,
)
from scalescope.results.traces import step_parts
from tests.builders.facts import ON_GPUS, abstention, evidence_of, finding, levers
from tests.builders.steps import host_times, recording, step_facts, with_own_optimizer

RATES = {"fp32": 50e12, "tf32": 400e12, "bf16": 800e12, "fp16": 750e12}
NATIVE = ("tf32", "bf16", "fp16")


def machine_with(*formats: str) -> dict[str, Any]:
    precisions = [{"name": name, "native": name in formats} for name in NATIVE]
    return {"gpus": [{"memory_bytes": 1, "precisions": precisions}]}


def on_gpu(*, changes: Mapping[str, object] | None = None, **known: Any) -> StepFacts:
    return step_facts(changes={**ON_GPUS, **(changes or {})}, **{"machine": machine_with(*NATIVE), **known})


# matrix units


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("formats", "words"),
    [
        (("tf32", "bf16", "fp16"), "tf32, bf16 and fp16 do"),
        (("fp16",), "fp16 does"),  # a V100 has units for fp16 alone
    ],
)
def test_fp32_leaves_matrix_units_idle(formats: tuple[str, ...], words: str, ranks: int) -> None:
    cause = finding(matrix_units_rule(on_gpu(ranks=ranks, machine=machine_with(*formats))))
    assert levers(cause) == [f"precision={name}" for name in formats]
    assert words in cause.claim
    assert ("gradients" in cause.claim) is (ranks > 1)
    assert (cause.share, cause.cost_s) == (0.0, None)  # nothing was recorded that tells


def test_matrix_units_that_are_unknown_in_use_or_not_there_are_no_finding() -> None:
    for machine in (None, {}, {"gpus": [{"memory_bytes": 1}]}):
        assert "number formats" in abstention(matrix_units_rule(on_gpu(machine=machine))).missing
    assert matrix_units_rule(on_gpu(machine=machine_with())) is None
    for changes in ({"precision": "tf32"}, {"precision": "bf16"}, {"device": "cpu"}):
        assert matrix_units_rule(on_gpu(changes=changes)) is None


def products(total_s: float, in_units_s: float = 0.0, **known: Any) -> dict[str, Any]:
    return {
        "recording": recording(
            matrix_product_s=total_s, matrix_unit_s=in_units_s, **{"product_flops_per_s": RATES, **known}
        )
    }


def test_products_in_fp32_cost_what_a_shorter_format_would_save() -> None:
    cause = finding(matrix_units_rule(on_gpu(**products(0.05, 0.01))))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.04 * 7 / 8), True)
    assert "8.0 times" in cause.claim
    assert levers(cause) == ["precision=tf32", "precision=bf16", "precision=fp16"]
    cause = finding(matrix_units_rule(on_gpu(**products(0.04), machine=machine_with("fp16"))))
    assert cause.cost_s == pytest.approx(0.04 * 14 / 15)
    cause = finding(matrix_units_rule(on_gpu(**products(0.05, product_flops_per_s=None))))
    assert (cause.share, cause.estimated) == (0.0, False)


@pytest.mark.parametrize(
    "known",
    [
        products(0.002),
        products(0.05, 0.05),  # where the user's own code allows tf32
        products(0.002, product_flops_per_s={}),
        products(0.05, product_flops_per_s={"fp32": 1.0, "tf32": 1.0, "bf16": 0.5}),
    ],
    ids=["few", "in matrix units", "few, rates unknown", "no format is faster"],
)
def test_products_that_would_gain_little_are_no_finding(known: dict[str, Any]) -> None:
    assert matrix_units_rule(on_gpu(**known)) is None


def test_products_outside_autocast_are_told() -> None:
    cause = finding(matrix_units_rule(on_gpu(changes={"precision": "bf16"}, **products(0.05, 0.01))))
    assert cause.cost_s == pytest.approx(0.04 * 15 / 16)
    (advice,) = cause.advice
    assert (advice.argv, "autocast" in advice.label) == ((), True)
    few = on_gpu(changes={"precision": "bf16"}, **products(0.05, 0.03))
    assert matrix_units_rule(few) is None


# memory format


def images(layout_s: float, convolution_s: float = 0.04, **changes: Any) -> StepFacts:
    recorded = recording(layout_s=layout_s, convolution_s=convolution_s)
    return on_gpu(settings={"workload": "cnn"}, changes={"precision": "bf16", **changes}, recording=recorded)


def test_reordering_images_costs_its_kernels() -> None:
    cause = finding(memory_format_rule(images(0.01)))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.01), True)
    assert evidence_of(cause) == {"reordering": 0.01, "convolutions": 0.04}
    assert levers(cause) == ["memory_format=channels_last"]


@pytest.mark.parametrize(
    "facts",
    [
        images(0.002),
        images(0.01, convolution_s=0.0),
        images(0.01, memory_format="channels_last"),
        images(0.01, device="cpu"),
        on_gpu(settings={"workload": "cnn"}),
    ],
    ids=["little", "no convolutions", "channels last", "CPU", "no recording"],
)
def test_images_that_lie_well_are_no_finding(facts: StepFacts) -> None:
    assert memory_format_rule(facts) is None


# slow products


def padding(*times: tuple[float, float, float], **known: Any) -> StepFacts:
    """Products by (time in a step, time alone, time alone when padded)."""
    products = tuple(
        PaddedProduct(
            operation="aten::mm",
            shapes="[4096,768] [768,50257]",
            number_format="bf16",
            odd="50257",
            per_step=2.0,
            step_s=step_s,
            time_s=time_s,
            padded_s=padded_s,
        )
        for step_s, time_s, padded_s in times
    )
    return on_gpu(recording=recording(padded_products=products), **known)


def test_products_that_padding_makes_faster_cost_the_same_part_of_the_step() -> None:
    cause = finding(slow_products_rule(padding((0.004, 8e-4, 4e-4), (0.02, 4e-4, 1e-4))))
    assert cause.cost_s == pytest.approx(0.002 + 0.015)
    assert [evidence.value for evidence in cause.evidence] == [4e-4, 1e-4, 8e-4, 4e-4]  # the costlier first
    cause = finding(
        slow_products_rule(padding((0.02, 4e-4, 1e-4), terms_s={FORWARD: 0.004, BACKWARD: 0.006}))
    )
    assert cause.cost_s == pytest.approx(0.01)  # no more than the model's kernels take


@pytest.mark.parametrize(
    "facts",
    [
        padding((0.02, 4e-4, 5e-4)),
        padding((0.003, 4e-4, 1e-4)),
        padding((0.02, 0.0, 0.0)),
        padding(),
        on_gpu(),
    ],
    ids=["slower", "little", "not timed", "none", "no recording"],
)
def test_products_that_padding_does_not_help_are_no_finding(facts: StepFacts) -> None:
    assert slow_products_rule(facts) is None


# small kernels


def elementwise(
    kernels: float = 600.0, others: float = 200.0, time_s: float = 0.06, **known: Any
) -> StepFacts:
    """Kernels that compute element by element, and others of the model and of the optimizer."""
    recorded = recording(
        kernels=kernels + others + 50.0,
        elementwise_kernels=kernels,
        elementwise_s=time_s,
        optimizer_kernels=50.0,
        kernel_median_s=1e-5,
        parts=known.pop("parts", None),
    )
    return on_gpu(recording=recorded, **known)


def test_a_chain_of_kernels_leaves_one_and_saves_most_of_the_traffic() -> None:
    cause = finding(small_kernels_rule(elementwise()))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(5 / 6 * (1 - 201 / 600) * 0.06), True)
    assert levers(cause) == ["compile=default"]
    assert evidence_of(cause)["element-by-element kernels"] == 600


@pytest.mark.parametrize(
    "facts",
    [
        elementwise(changes={"compile": "default"}),
        elementwise(others=500.0),
        elementwise(time_s=0.01),
        elementwise(terms_s={IDLE_HOST: 0.02, IDLE_SYNC: 0.02}),
        elementwise(parts={step_parts.IDLE_HOST: 0.03}),
        elementwise(kernels=0.0),
        elementwise(changes={"device": "cpu"}),
        on_gpu(recording=recording()),
        on_gpu(),
    ],
    ids=["compiled", "short chains", "little time", "idle", "idle by its recording", "none", "CPU", "?", "-"],
)
def test_kernels_that_fusing_does_not_help_are_no_finding(facts: StepFacts) -> None:
    assert small_kernels_rule(facts) is None


# optimizer


def updating(kernels: float | None = 800.0, **known: Any) -> StepFacts:
    """148 parameters of 124 million values on a GPU, updated in 20 of 100 ms."""
    model = ModelFacts(parameters=124_000_000, parameter_tensors=148, **known.pop("model", {}))
    return on_gpu(
        changes={"optimizer": "adamw", **known.pop("changes", {})},
        **{
            "recording": recording(optimizer_kernels=kernels),
            "terms_s": {OPTIMIZER: 0.02},
            "model": model,
            **known,
        },
    )


def test_an_unfused_optimizer_could_save_half_of_its_time() -> None:
    cause = finding(unfused_optimizer_rule(updating()))
    assert (cause.cost_s, cause.estimated) == (pytest.approx(0.01), True)
    assert evidence_of(cause) == {"optimizer": 0.02, "optimizer kernels": 800}
    assert "AdamW" in cause.claim
    assert levers(cause) == ["fused_optimizer=True"]


def test_the_measured_time_of_an_update_goes_before_the_trace() -> None:
    cause = finding(unfused_optimizer_rule(updating(without_optimizer_s=(0.07,))))
    assert cause.cost_s == pytest.approx(0.015)
    uncertain = updating(step_s=(0.09, 0.10, 0.11), without_optimizer_s=(0.05, 0.08, 0.11))
    assert unfused_optimizer_rule(uncertain) is None


@pytest.mark.parametrize(
    "facts",
    [
        updating(changes={"fused_optimizer": True}),
        updating(kernels=20.0),
        updating(kernels=None),
        updating(terms_s={OPTIMIZER: 0.005}),
        updating(recording=None),
        updating(terms_s=None, activities=host_times({"optimizer": 0.05})),
        with_own_optimizer(updating(), "Lion"),
        with_own_optimizer(updating(model={"optimizer_is_fused": True}), "AdamW"),
    ],
    ids=["fused", "few kernels", "not counted", "short", "no recording", "no time", "not torch's", "its own"],
)
def test_an_optimizer_that_cannot_or_need_not_be_fused_is_no_finding(facts: StepFacts) -> None:
    assert unfused_optimizer_rule(facts) is None


def test_an_optimizer_of_the_workload_gets_a_line_to_change() -> None:
    (advice,) = finding(unfused_optimizer_rule(with_own_optimizer(updating(), "Adam"))).advice
    assert (advice.argv, "torch.optim.Adam(..., fused=True)" in advice.label) == ((), True)
    facts = with_own_optimizer(updating(changes={"fused_optimizer": True}), "Adam")
    assert finding(unfused_optimizer_rule(facts)).advice[0].argv == ()


@pytest.mark.parametrize(("optimizer", "is_finding"), [("adamw", True), ("sgd", False)])
def test_on_the_cpu_and_for_sharded_parameters_only_adam_gains(optimizer: str, is_finding: bool) -> None:
    """On the CPU only an optimizer of several passes gains; torch fuses only Adam for sharded parameters."""
    facts = step_facts(settings={"optimizer": optimizer}, activities=host_times({"optimizer": 0.02}))
    assert (unfused_optimizer_rule(facts) is not None) is is_finding
    facts = updating(ranks=2, changes={"strategy": "fsdp", "optimizer": optimizer})
    assert (unfused_optimizer_rule(facts) is not None) is is_finding
    assert unfused_optimizer_rule(updating(ranks=2, changes={"optimizer": optimizer})) is not None
