"""When a number format counts as emulated, and the notes on trials that use it."""

import dataclasses

import pytest

from scalescope.experiment.expand import expand
from scalescope.experiment.machine import Machine, PrecisionSupport
from scalescope.experiment.machines.emulation import emulation_text, precisions_text
from scalescope.launch.fake import TWO_CORES
from tests.builders.requests import ask, with_gpus

EMULATED = PrecisionSupport(name="bf16", native=False, slowdown=96.3)


def with_bf16(support: PrecisionSupport) -> Machine:
    return dataclasses.replace(TWO_CORES, precisions=(support,))


def volta(count: int = 1) -> Machine:
    """GPUs with matrix units for fp16 alone."""
    supports = (
        PrecisionSupport(name="tf32", native=False),
        PrecisionSupport(name="bf16", native=False),
        PrecisionSupport(name="fp16", native=True),
    )
    machine = with_gpus(count)
    return dataclasses.replace(
        machine, gpus=tuple(dataclasses.replace(gpu, precisions=supports) for gpu in machine.gpus)
    )


@pytest.mark.parametrize(
    ("native", "slowdown", "emulated"),
    [
        (True, 0.4, False),
        (True, 1.8, False),
        (True, 45.0, True),  # instructions that torch does not use
        (True, None, False),
        (False, None, True),
        (False, 1.5, True),  # conversions around fp32: it cannot be faster
        (None, 0.9, False),
        (None, 96.0, True),
        (None, None, False),  # unknown is not a reason to leave anything out
    ],
)
def test_not_native_or_much_slower_is_emulated(
    native: bool | None, slowdown: float | None, emulated: bool
) -> None:
    assert PrecisionSupport(name="bf16", native=native, slowdown=slowdown).emulated is emulated


def notes(machine: Machine, **texts: str) -> list[str]:
    return [note for note in expand(ask(**texts), machine).notes if "No GPU found" not in note]


def test_an_emulated_precision_runs_with_a_note() -> None:
    (note,) = notes(with_bf16(EMULATED), precision="fp32,bf16", optimizer="sgd,adamw")
    assert note == (
        "bf16 is emulated on this processor: a matrix product takes about 96 times as long as in fp32."
    )
    assert notes(with_bf16(EMULATED), precision="fp32") == []
    assert notes(TWO_CORES, precision="bf16") == []


def test_parameters_in_an_emulated_format_have_the_note_too() -> None:
    texts = {"world_size": "2", "strategy": "fsdp", "fsdp_param_dtype": "bf16"}
    assert len(notes(with_bf16(EMULATED), **texts)) == 1


def test_casts_for_the_exchange_are_no_products() -> None:
    assert notes(with_bf16(EMULATED), world_size="2", comm_hook="bf16") == []


def test_a_gpu_without_matrix_units_for_a_format() -> None:
    assert notes(volta(), precision="tf32,bf16,fp16") == [
        "tf32 is not available on this GPU: matrix products are computed in fp32.",
        "bf16 is emulated on this GPU, which may take many times as long as fp32.",
    ]


def test_the_cpu_does_not_decide_about_a_gpu() -> None:
    machine = dataclasses.replace(with_gpus(1), precisions=(EMULATED,))
    assert notes(machine, precision="bf16") == []
    assert len(notes(machine, precision="bf16", device="cpu")) == 1


def test_facts_as_text() -> None:
    native = PrecisionSupport(name="bf16", native=True, slowdown=0.272)
    unknown = PrecisionSupport(name="fp16")
    assert precisions_text((native, unknown)) == "bf16 native (0.27 times as long as fp32), fp16 unknown"
    assert precisions_text((EMULATED,)) == "bf16 emulated (96 times as long as fp32)"
    assert precisions_text(()) == "unknown"
    slow = dataclasses.replace(EMULATED, slowdown=6.04)
    assert emulation_text(slow, "cpu").endswith("a matrix product takes about 6 times as long as in fp32")
