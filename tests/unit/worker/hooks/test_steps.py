"""What the steps of a script consist of: its model's inputs, its loaders, its optimizers."""

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from scalescope import clocks
from scalescope.worker.hooks import optimizers
from scalescope.worker.hooks.hook_guard import HookGuard
from scalescope.worker.hooks.inputs import ModelInputs
from scalescope.worker.hooks.loaders import ScriptLoaders
from scalescope.worker.hooks.optimizers import OptimizerEvents
from scalescope.worker.hooks.parts import BackwardTime, CountedSamples, StepParts
from scalescope.worker.hooks.ranks import ScriptRanks
from scalescope.worker.hooks.wrappers import Wrappers


def _raise(error: Exception) -> None:
    raise error


GUARD = HookGuard(_raise)


class Script:
    """A script of one model, with everything that looks at it."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = ModelInputs(GUARD)
        self.loaders = ScriptLoaders({}, GUARD, preloads=False)
        events = OptimizerEvents(lambda _: None, GUARD)
        backward = BackwardTime(Wrappers({}, GUARD, silent=False))
        self.parts = StepParts(self.inputs, self.loaders, events, backward)
        self.watches: tuple[Any, ...] = (self.loaders, events, backward)
        for watch in self.watches:
            watch.install()
        self.inputs.watch(self.model.parameters())

    def step(self, inputs: torch.Tensor) -> None:
        self.model(inputs).sum().backward()
        self.optimizer.step()

    def warm_up(self, batches: Callable[[], Iterator[torch.Tensor]]) -> None:
        for inputs in batches():
            self.step(inputs)
        self.inputs.settle()
        self.parts.begin()
        for inputs in batches():
            self.step(inputs)
            self.parts.end_step()
        self.parts.settle()

    def remove(self) -> None:
        for watch in (self.inputs, *self.watches):
            watch.remove()


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.remove()


def test_regular_steps_are_not_counted_in_the_window(script: Script) -> None:
    script.warm_up(lambda: iter([torch.zeros(8, 4)] * 4))
    assert "_compiled_call_impl" not in vars(script.model)
    for _ in range(10):
        script.step(torch.zeros(8, 4))
    expected = CountedSamples(80, "samples", "first dimension of the input of Linear")
    assert script.parts.samples(10) == expected
    assert script.parts.micro_batches == 1


def test_steps_of_different_size_are_counted_in_the_window(script: Script) -> None:
    script.warm_up(lambda: iter([torch.zeros(8, 4), torch.zeros(6, 4)]))
    copy.deepcopy(script.model)(torch.zeros(100, 4))  # a copied model is not counted
    assert script.parts.samples(1) is None
    for samples in (3, 5):
        script.step(torch.zeros(samples, 4))
    counted = script.parts.samples(2)
    assert counted is not None
    assert counted.count == 8


def test_a_smaller_last_batch_of_a_loader_is_counted(script: Script) -> None:
    full = DataLoader(TensorDataset(torch.zeros(20, 4)), batch_size=8)

    def full_batches() -> Iterator[torch.Tensor]:
        return (inputs for (inputs,) in itertools.islice(full, 2))

    script.warm_up(full_batches)
    assert "_compiled_call_impl" not in vars(script.model)
    for (inputs,) in full:
        script.step(inputs)
    counted = script.parts.samples(3)
    assert counted is not None
    assert counted.count == 20


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is read: other processes make no part longer."""
    tick = itertools.count().__next__
    monkeypatch.setattr(clocks, "perf_counter", tick)
    monkeypatch.setattr(optimizers, "_now", tick)


@pytest.mark.usefixtures("ticking")  # before the script, which keeps the clock
def test_times_are_those_of_the_warm_up() -> None:
    script = Script()
    script.warm_up(lambda: iter([torch.zeros(8, 4)] * 4))
    script.remove()
    assert script.parts.times(10) == {"host/forward_s": 1, "host/backward_s": 1, "host/optimizer_s": 1}


def test_a_script_that_keeps_all_batches_of_its_loader_waits_for_none(script: Script) -> None:
    kept = [batch[0] for batch in DataLoader(TensorDataset(torch.zeros(32, 4)), batch_size=8)]
    script.warm_up(lambda: iter(kept))
    assert script.parts.times(10)["host/input_s"] == 0.0


def watched(*modules: nn.Module) -> ModelInputs:
    inputs = ModelInputs(GUARD)
    inputs.watch(parameter for module in modules for parameter in module.parameters())
    return inputs


def test_the_outermost_module_counts() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    inputs = watched(model)
    model(torch.randn(8, 4))
    inputs.settle()
    inputs.reset()
    model(torch.randn(8, 4))
    model(torch.randn(5, 4))
    assert inputs.counted() == (13, "samples", "Sequential")
    assert inputs.calls == 2


def test_what_runs_without_gradients_or_after_removal_does_not_count() -> None:
    model = nn.Linear(4, 2)
    inputs = watched(model)
    model(torch.randn(8, 4))
    with torch.no_grad():
        model(torch.randn(100, 4))
    assert inputs.counted() == (8, "samples", "Linear")
    inputs = watched(model)
    inputs.remove()
    model(torch.randn(8, 4))
    assert inputs.counted() is None


def test_integers_of_two_dimensions_are_tokens_and_texts_of_different_length_are_samples() -> None:
    model = nn.Embedding(10, 4)
    inputs = watched(model)
    model(torch.zeros(3, 7, dtype=torch.long))
    assert inputs.counted() == (21, "tokens", "Embedding")
    model(torch.zeros(3, 9, dtype=torch.long))
    assert inputs.counted() == (6, "samples", "Embedding")


class Keyword(nn.Module):
    """Takes named inputs, the first of which is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, *, scale: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(inputs) * scale
        return result


def test_named_inputs_and_numbers() -> None:
    model = Keyword()
    inputs = watched(model)
    model(scale=torch.tensor(2.0), inputs=torch.randn(6, 4))
    assert inputs.counted() == (6, "samples", "Keyword")


class Holder(nn.Module):
    """Is never called itself, like Lightning's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def test_a_module_inside_one_that_is_never_called() -> None:
    holder = Holder()
    inputs = watched(holder)
    holder.model(torch.randn(9, 4))
    inputs.settle()
    inputs.reset()
    holder.model(torch.randn(9, 4))
    assert inputs.counted() == (9, "samples", "Sequential")


def test_of_several_modules_the_least_counts() -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    inputs = watched(generator, critic)
    critic(torch.randn(8, 4))
    critic(generator(torch.randn(8, 4)))
    assert inputs.counted() == (8, "samples", "Linear")
    assert len(inputs.modules) == 2


def installed(changes: dict[str, Any], *, preloads: bool = False) -> ScriptLoaders:
    watch = ScriptLoaders(changes, GUARD, preloads=preloads)
    watch.install()
    return watch


@pytest.fixture
def samples() -> TensorDataset:
    return TensorDataset(torch.arange(20).float())


def test_batches_are_counted(samples: TensorDataset) -> None:
    watch = installed({})
    try:
        assert [len(batch[0]) for batch in DataLoader(samples, batch_size=8)] == [8, 8, 4]
    finally:
        watch.remove()
    assert (watch.batches, watch.samples) == (3, 20)
    list(DataLoader(samples, batch_size=8))
    assert watch.batches == 3


class CountsThreads(torch.utils.data.Dataset[float]):
    """Remembers on how many threads each sample was prepared."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.threads: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> float:
        self.threads.append(torch.get_num_threads())
        return float(number)


@pytest.mark.parametrize("workers", [0, 1])
def test_one_batch_of_the_data_that_train_is_prepared_on_one_thread(workers: int) -> None:
    validation, training = CountsThreads(2), CountsThreads(4)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    watch = installed({})
    try:
        list(DataLoader(validation, batch_size=1))
        assert watch.process_s is None  # nobody knows yet which data train the model
        watch.reset()
        batches = iter(DataLoader(training, batch_size=1, num_workers=workers))
        next(batches), next(batches)
        watch.settle()
        assert (watch.process_s is None) == (workers == 1)
        list(batches)
    finally:
        watch.remove()
        torch.set_num_threads(before)
    assert validation.threads == [2, 1]
    assert training.threads == ([2, 1, 2, 2] if workers == 0 else [])


def test_preloaded_batches_have_the_length_of_the_loader(samples: TensorDataset) -> None:
    watch = installed({}, preloads=True)
    try:
        loader = DataLoader(samples, batch_size=1, shuffle=True)
        first = [float(batch[0]) for batch in loader]
        again = [float(batch[0]) for batch in loader]
    finally:
        watch.remove()
    assert len(first) == len(again) == 20
    assert first == again
    assert len(set(first)) == 8


class Reads(torch.utils.data.Dataset[float]):
    """Counts how many samples were read."""

    def __init__(self, first: float = 0.0) -> None:
        self.first = first
        self.count = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> float:
        self.count += 1
        return self.first + number


def test_a_loader_that_is_made_anew_in_every_epoch_has_the_batches_of_the_first() -> None:
    data = Reads()
    watch = installed({}, preloads=True)
    try:
        for _ in range(3):
            list(DataLoader(data, batch_size=1))
        watch.settle()
        anew = Reads()
        assert len(list(DataLoader(anew, batch_size=1))) == 20
    finally:
        watch.remove()
    assert (data.count, anew.count) == (8, 0)


@pytest.mark.parametrize("preloads", [False, True])
def test_two_data_sets_of_one_kind_keep_their_own_batches(preloads: bool) -> None:
    one, other = (DataLoader(Reads(first), batch_size=1) for first in (0.0, 100.0))
    watch = installed({}, preloads=preloads)
    try:
        assert len([*one, *other]) == 40
        watch.settle()
        with contextlib.nullcontext() if preloads else watch.preloading():
            assert {float(x) for x in one} == set(range(8))
            assert {float(x) for x in other} == set(range(100, 108))
    finally:
        watch.remove()


def test_a_loop_that_is_under_way_gets_preloaded_batches_and_then_goes_on(samples: TensorDataset) -> None:
    watch = installed({})
    loader = DataLoader(samples, batch_size=1)
    try:
        loop = iter(loader)
        before = [float(next(loop)[0]) for _ in range(2)]
        with watch.preloading():
            inside = [float(next(loop)[0]) for _ in range(18)]
            with pytest.raises(StopIteration):  # as long as the loader's own
                next(loop)
            later = iter(loader)
            preloaded = [float(next(later)[0]) for _ in range(3)]
        after = [float(batch[0]) for batch in later]
    finally:
        watch.remove()
    assert before == [0.0, 1.0]
    assert inside == [*map(float, range(2, 10)), *map(float, range(2, 10)), 2.0, 3.0]
    assert set(preloaded) <= set(inside)
    assert after == list(map(float, range(17)))  # its own, as many as were left
    assert [float(batch[0]) for batch in loader] == list(map(float, range(20)))


def test_a_loop_that_began_while_batches_were_preloaded_can_be_preloaded_again(
    samples: TensorDataset,
) -> None:
    watch = installed({})
    try:
        with watch.preloading():
            loop = iter(DataLoader(samples, batch_size=1))
            next(loop)
        own = [float(next(loop)[0]) for _ in range(2)]
        with watch.preloading():
            again = [float(next(loop)[0]) for _ in range(16)]
    finally:
        watch.remove()
    assert own == [1.0, 2.0]
    assert again[:8] == again[8:]


def test_loaders_of_one_data_set_keep_their_own_batches_and_others_are_left_alone(
    samples: TensorDataset,
) -> None:
    watch = installed({})
    small, large = DataLoader(samples, batch_size=1), DataLoader(samples, batch_size=5)
    other = DataLoader(TensorDataset(torch.arange(100, 130).float()), batch_size=1)
    try:
        list(small)
        watch.settle()
        with watch.preloading():
            assert {len(batch[0]) for batch in small} == {1}
            assert {len(batch[0]) for batch in large} == {5}
            assert len({float(batch[0]) for batch in small}) == 8
            assert [float(batch[0]) for batch in other] == list(map(float, range(100, 130)))
    finally:
        watch.remove()


def test_entries_that_a_script_takes_out_come_back() -> None:
    class Named(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
            return {"x": torch.ones(2), "label": torch.tensor(number)}

    watch = installed({})
    try:
        with watch.preloading():
            assert len([batch.pop("label") for batch in DataLoader(Named(), batch_size=2)]) == 20
    finally:
        watch.remove()


def test_a_data_set_that_is_made_anew_in_every_epoch_is_the_same(samples: TensorDataset) -> None:
    watch = installed({})
    try:
        list(DataLoader(samples, batch_size=8))
        watch.settle()
        list(DataLoader(TensorDataset(torch.arange(20).float()), batch_size=8))
        assert watch.samples == 20
        list(DataLoader(TensorDataset(torch.arange(7).float()), batch_size=8))
        with torch.no_grad():
            list(DataLoader(TensorDataset(torch.arange(20).float()), batch_size=8))
        assert watch.samples == 20
    finally:
        watch.remove()


class Endless(IterableDataset[torch.Tensor]):
    """Has no length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(3)


def test_a_loader_without_length_goes_on() -> None:
    watch = installed({}, preloads=True)
    try:
        iterator = iter(DataLoader(Endless(), batch_size=2))
        assert [len(next(iterator)) for _ in range(20)] == [2] * 20
    finally:
        watch.remove()


def test_scripts_may_take_entries_out_of_preloaded_batches() -> None:
    watch = installed({}, preloads=True)
    try:
        data = [{"inputs": torch.ones(2), "labels": torch.zeros(1)} for _ in range(4)]
        loader: DataLoader[Any] = DataLoader(data, batch_size=2)  # type: ignore[arg-type]
        labels = [batch.pop("labels") for _ in range(3) for batch in loader]
    finally:
        watch.remove()
    assert len(labels) == 6


def test_arguments_are_changed_and_prefetching_needs_processes(samples: TensorDataset) -> None:
    watch = installed({"num_workers": 0, "pin_memory": False, "prefetch_factor": 4})
    try:
        loader = DataLoader(samples, 4, False, num_workers=2, persistent_workers=True)
    finally:
        watch.remove()
    assert (loader.num_workers, loader.pin_memory, loader.prefetch_factor) == (0, False, None)
    assert watch.changed == 1


@pytest.mark.parametrize(
    "collate",
    [
        None,
        lambda samples: torch.stack([sample[0] for sample in samples]),
        lambda samples: {"name": "x", "inputs": torch.stack([sample[0] for sample in samples])},
    ],
    ids=["list", "tensor", "mapping"],
)
def test_settled_loaders_count_the_data_of_the_training_only(samples: TensorDataset, collate: Any) -> None:
    watch = installed({})
    validation = TensorDataset(torch.zeros(7))
    try:
        loader = DataLoader(samples, batch_size=8, collate_fn=collate)
        list(loader)
        watch.settle()
        assert watch.samples == 0
        list(loader)
        list(DataLoader(validation, batch_size=2))
        assert watch.samples == 20
        assert watch.wait_s > 0
    finally:
        watch.remove()


@pytest.fixture
def events() -> Iterator[tuple[OptimizerEvents, list[Any]]]:
    stepped: list[Any] = []
    watch = OptimizerEvents(stepped.append, GUARD)
    watch.install()
    yield watch, stepped
    watch.remove()


def made() -> tuple[nn.Parameter, torch.optim.SGD]:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter, torch.optim.SGD([parameter], lr=0.1)


class Outer(torch.optim.Optimizer):
    """Steps another optimizer inside its own step, as ZeroRedundancyOptimizer does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_inner_optimizer_is_not_an_event(events: tuple[OptimizerEvents, list[Any]]) -> None:
    watch, stepped = events
    _, inner = made()
    outer = Outer(inner)
    outer.step()
    outer.step()
    assert stepped == [outer, outer]
    assert watch.key_of(outer) == 0
    watch.settle(None)
    outer.step()
    assert stepped == [outer, outer, outer]
    watch.remove()
    outer.step()
    assert stepped == [outer, outer, outer]


def test_a_step_that_raised_does_not_nest_later_ones(events: tuple[OptimizerEvents, list[Any]]) -> None:
    _, stepped = events
    _, optimizer = made()

    def fails() -> float:
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        optimizer.step(fails)
    optimizer.step()
    assert stepped == [optimizer]


def test_a_scaler_that_leaves_a_step_out_ends_a_step(events: tuple[OptimizerEvents, list[Any]]) -> None:
    watch, stepped = events
    parameter, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(parameter.sum()).backward()
    parameter.grad = torch.full((2,), float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert (stepped, watch.skipped) == ([optimizer], 1)


def test_a_settled_script_calls_at_the_end_of_its_step(events: tuple[OptimizerEvents, list[Any]]) -> None:
    watch, stepped = events
    _, optimizer = made()
    _, other = made()
    optimizer.step()
    ends: list[int] = []
    watch.settle((optimizer, lambda: ends.append(1)))
    optimizer.step()
    other.step()
    assert (len(ends), stepped, watch.events) == (1, [optimizer, other], 3)


def test_a_settled_script_can_be_watched_again(events: tuple[OptimizerEvents, list[Any]]) -> None:
    watch, stepped = events
    _, optimizer = made()
    optimizer.step()
    watch.settle((optimizer, watch.unsettle))
    optimizer.step()
    outer = Outer(optimizer)
    outer.step()
    assert stepped == [optimizer, outer]


def test_hooks_can_be_settled_and_removed_while_others_wait_for_their_turn() -> None:
    _, optimizer = made()
    calls: list[str] = []

    def on_step(_: torch.optim.Optimizer) -> None:
        calls.append("ours")
        if len(calls) == 1:
            watch.settle((optimizer, watch.remove))

    watch = OptimizerEvents(on_step, GUARD)
    watch.install()
    later = register_optimizer_step_post_hook(lambda *_: calls.append("later"))
    try:
        for _ in range(3):
            optimizer.step()
    finally:
        later.remove()
    assert calls == ["ours", "later", "later", "later"]


def test_ranks_that_begin_anew_agree_under_another_key() -> None:
    store = dist.HashStore()
    first, second = ScriptRanks(0, 2, store), ScriptRanks(1, 2, store)
    for value in (3.0, 5.0):
        assert first.common("warmup", value) == second.common("warmup", 99.0) == value


def test_steps_that_nobody_looks_at_are_no_part_of_the_next(script: Script) -> None:
    script.step(torch.zeros(8, 4))
    script.inputs.settle()
    script.parts.begin()
    for _ in range(5):
        script.step(torch.zeros(8, 4))
    script.parts.skip_steps()
    for _ in range(2):
        script.step(torch.zeros(8, 4))
        script.parts.end_step()
    assert script.parts.micro_batches == 1.0
