"""The `cnn` workload is ResNet: its size, its cost, its shape, and what it is fed."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scalescope.catalog.workloads.cnn import Cnn
from scalescope.errors import BadInput
from scalescope.worker.workloads.cnn import build
from tests.builders.workers import CPU, build_context, feed_of, options

META = torch.device("meta")
_RESNET_50 = {"depth": 50, "channels": 64, "image_size": 224, "num_classes": 1000}
# torchvision's counts of parameters at 64 channels and 1000 classes.
_PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}


def _counted_flops(card: Cnn, *, backward: bool) -> int:
    """What torch itself counts for one image, without computing anything."""
    with FlopCounterMode(display=False) as counter:
        model = build(card, META, build_context()).model
        loss = model(torch.randn(2, 3, card.image_size, card.image_size, device=META)).sum()
        if backward:
            loss.backward()
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(("depth", "parameters"), _PARAMETERS.items())
def test_parameters_are_those_of_resnet(depth: int, parameters: int) -> None:
    model = build(options(Cnn, "cuda", **{**_RESNET_50, "depth": depth}), META, build_context()).model
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_resnet_50_takes_four_billion_multiplications_forward() -> None:
    card = options(Cnn, "cuda")
    assert card == Cnn(**{**_RESNET_50, "num_classes": None})
    assert card.forward_macs() == pytest.approx(4.1e9, rel=0.01)
    assert _counted_flops(card, backward=False) == pytest.approx(2 * card.forward_macs(), rel=0.001)


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 34, "channels": 3},
        {"depth": 50, "image_size": 63},
        {"depth": 18, "image_size": 97, "channels": 64, "num_classes": 7},
    ],
)
def test_flops_are_what_torch_counts(changes: dict[str, Any]) -> None:
    card = options(Cnn, **changes)
    assert _counted_flops(card, backward=True) == pytest.approx(card.flops_per_sample(), rel=0.02)


def test_a_pipeline_could_split_it_between_blocks() -> None:
    card = options(Cnn)
    model = build(card, CPU, build_context()).model
    assert isinstance(model, nn.Sequential)
    assert len(model) == 1 + 8 + 1
    images = torch.randn(2, 3, 32, 32)
    first, second = model[:4], model[4:]
    model.eval()
    assert torch.equal(second(first(images)), model(images))


@pytest.mark.parametrize(("size", "after_stem"), [(32, 32), (63, 63), (64, 16), (224, 56)])
def test_large_images_are_shrunk_before_the_first_block(size: int, after_stem: int) -> None:
    model = build(options(Cnn, image_size=size), META, build_context()).model
    assert model[0](torch.randn(1, 3, size, size, device=META)).shape == (1, 16, after_stem, after_stem)


def test_it_trains_on_the_smallest_images_one_at_a_time() -> None:
    """Normalisation needs two values a channel; the last stage must leave them."""
    workload = build(options(Cnn, image_size=16), CPU, build_context())
    batch = next(feed_of(workload.data, 1).batches)
    workload.loss_of(workload.model, batch).backward()
    for parameter in workload.model.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()


def test_images_are_random_and_classes_in_range() -> None:
    images, classes = next(feed_of(build(options(Cnn, num_classes=3), CPU, build_context()).data, 64).batches)
    assert images.shape == (64, 3, 32, 32)
    assert 0.9 < float(images.std()) < 1.1
    assert set(classes.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("size", "given", "classes"), [(32, None, 10), (64, None, 1000), (64, 7, 7)])
def test_auto_classes_follow_the_images(size: int, given: int | None, classes: int) -> None:
    card = options(Cnn, image_size=size, num_classes=given)
    assert card.classes == classes
    model = build(card, META, build_context()).model
    assert model(torch.randn(2, 3, size, size, device=META)).shape == (2, classes)


@pytest.mark.parametrize(("depth", "near"), [(20, 18), (35, 34), (49, 50), (100, 101), (151, 152)])
def test_a_depth_of_no_resnet_names_the_nearest(depth: int, near: int) -> None:
    with pytest.raises(BadInput, match=rf"^depth must be one of .*, got {depth}; the nearest is {near}$"):
        Cnn.check({"depth": depth})
    Cnn.check({"depth": near})


def test_the_same_seed_makes_the_same_model() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build(options(Cnn), CPU, build_context()).model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert float(states[0]["0.0.weight"].std()) > 0
