"""Custom workloads: what a function may request and return, and how its mistakes are reported."""

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from scalescope.catalog.workloads.custom import Custom
from scalescope.errors import BadInput
from scalescope.job import Job
from scalescope.worker.training.step import Workload
from scalescope.worker.workloads.custom import build
from tests.builders.workers import CPU, build_context, feed_of

_GOOD = """
import torch
from torch import nn

def build():
    return nn.Linear(2, 2), [(torch.zeros(2), 0)] * 8, nn.functional.cross_entropy
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty current directory, and imports as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def _build(reference: str, **where: Any) -> Workload:
    return build(Custom(), CPU, build_context(reference, **where))


def _built(monkeypatch: pytest.MonkeyPatch, factory: Callable[..., Any], **where: Any) -> Workload:
    """The workload of a function of this test, as if it stood in a file."""
    Path("given.py").write_text("")
    monkeypatch.setitem(sys.modules, "given_module", type(sys)("given_module"))
    monkeypatch.setattr(sys.modules["given_module"], "build", factory, raising=False)
    return _build("given_module:build", **where)


def _refusal(source: str, reference: str = "mine.py:build") -> str:
    """The error for a file; `line N` counts from the line after the opening quotes."""
    Path("mine.py").write_text(source)
    with pytest.raises(BadInput) as caught:
        _build(reference)
    message = str(caught.value)
    assert "\n" not in message
    return message


def _parts() -> tuple[nn.Module, Any, Any]:
    return nn.Linear(2, 2), TensorDataset(torch.zeros(8, 2), torch.zeros(8)), nn.functional.mse_loss


def test_a_file_is_found_by_relative_and_absolute_path(tmp_path: Path) -> None:
    Path("below").mkdir()
    Path("below/mine.py").write_text(_GOOD)
    for reference in ("below/mine.py:build", f"{tmp_path}/below/mine.py:build"):
        workload = _build(reference)
        assert isinstance(workload.model, nn.Linear)
        assert workload.make_optimizer is None


def test_a_file_may_import_its_neighbours_and_define_dataclasses() -> None:
    Path("below").mkdir()
    Path("below/neighbour.py").write_text("WIDTH = 3\n")
    Path("below/mine.py").write_text(
        "from __future__ import annotations\nimport dataclasses, neighbour\nfrom torch import nn\n"
        "@dataclasses.dataclass\nclass Size:\n    width: int = neighbour.WIDTH\n"
        "def build():\n    return nn.Linear(Size().width, 1), [], nn.functional.mse_loss\n"
    )
    assert _build("below/mine.py:build").model.in_features == 3


def test_a_module_is_found_from_the_current_directory() -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    Path("package/inner.py").write_text(_GOOD)
    assert isinstance(_build("package.inner:build").model, nn.Linear)


def test_a_function_gets_the_arguments_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}

    def factory(rank: int, device: torch.device, *, batch_size: int, other: int = 5, **rest: Any) -> Any:
        got.update(rank=rank, device=device, batch_size=batch_size, other=other, rest=rest)
        return _parts()

    _built(monkeypatch, factory, rank=1, world_size=2, batch_size=16)
    assert got == {"rank": 1, "device": CPU, "batch_size": 16, "other": 5, "rest": {}}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def build(model_size, seed): pass",
            "it requires model_size, seed; available arguments: rank, world_size, ",
        ),
        ("def other(): pass", "mine.py has no function build; functions that could be workloads: other"),
        ("def built(): pass\ndef helper(path): pass", "mine.py has no function build; did you mean built? ("),
        ("build = 5", "build is an int, not a function"),
        ("\nx = 1 / 0\ndef build(): pass", "line 2: ZeroDivisionError: division by zero"),
        ("def build():\n    raise ValueError('first\\nsecond')", "line 2: ValueError: first"),
        ("import json\ndef build():\n    json.loads('{')", "line 3: JSONDecodeError: Expecting property"),
        ("import sys\ndef build():\n    sys.exit(0)", "line 3: called sys.exit(0)"),
        ("def build(:\n    pass", "line 1: SyntaxError: invalid syntax: def build(:"),
        ("import no_such_thing", "line 1: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def build(): return 5", "returned an int; expected (model, data, loss), ("),
        ("def build(): return 1, 2", "returned a tuple of 2; expected (model, data, loss)"),
        ("def build(): return 1, [], print", "returned an int as model; expected a torch.nn.Module"),
        (
            "from torch import nn\ndef build(): return nn.ReLU(), [], print",
            "returned a model without parameters to train",
        ),
        (
            "from torch import nn\ndef build(): return nn.Linear(1, 1), 5, print",
            "returned an int as data; expected a data set or an iterable",
        ),
        (
            "from torch import nn\nclass Endless:\n    def __getitem__(self, n): return n\n"
            "def build(): return nn.Linear(1, 1), Endless(), print",
            "returned an Endless as data, which has no __len__",
        ),
        (
            "from torch import nn\ndef build(): return nn.Linear(1, 1), [], None",
            "returned None as loss; expected a function",
        ),
        (
            "from torch import nn\ndef build(): return nn.Linear(1, 1), [], print, 'adam'",
            "returned a str as optimizer; expected an optimizer or a function",
        ),
    ],
)
def test_a_mistake_in_a_file_is_reported_in_one_line(source: str, message: str) -> None:
    assert _refusal(source).startswith(f"workload mine.py:build: {message}")


def test_a_syntax_error_in_a_neighbour_names_the_neighbour(tmp_path: Path) -> None:
    Path("neighbour.py").write_text("\n\nx = = 1\n")
    message = _refusal("import neighbour")
    assert message == (
        f"workload mine.py:build: {tmp_path}/neighbour.py:3: SyntaxError: invalid syntax: x = = 1"
    )


def test_errors_in_a_module_point_into_it() -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    Path("package/inner.py").write_text("def build():\n    return [][0]\n")
    Path("package/torn.py").write_text("def build(:\n")
    assert _refusal("", "package.inner:build").endswith(
        "package.inner:build: line 2: IndexError: list index out of range"
    )
    assert _refusal("", "package.torn:build").endswith(
        "torn:build: line 1: SyntaxError: invalid syntax: def build(:"
    )


@pytest.mark.parametrize("place_of", ["nowhere", "nowhere.inner", "package.nowhere"])
def test_a_missing_module_is_distinguished_from_a_missing_import(tmp_path: Path, place_of: str) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    missing = place_of.removesuffix(".inner")
    why = f"there is no module {missing} in {tmp_path} or among the installed packages"
    assert _refusal("", f"{place_of}:build") == f"workload {place_of}:build: {why}"


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2), torch.tensor(1))] * 8)


def test_a_loader_brings_its_data_set_and_how_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, loss = _parts()

    def together(fetched: list[Any]) -> Any:
        return torch.stack([inputs for inputs, _ in fetched]), "mine"

    loader = DataLoader(data, batch_size=3, collate_fn=together, drop_last=True)
    built = _built(monkeypatch, lambda: (model, loader, loss)).data
    assert built.samples is data
    assert (built.num_workers, built.drop_last) == (0, True)
    batch = next(feed_of(built, 4).batches)
    assert (batch[0].shape, batch[1]) == ((4, 2), "mine")  # the trial's batch, the owner's function


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(_Stream(), batch_size=2),  # is batched anew
        DataLoader([(torch.zeros(4, 2), torch.zeros(4))] * 3, batch_size=None),  # hands out ready batches
    ],
)
def test_loaders_of_streams_and_ready_batches(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _built(monkeypatch, lambda: (nn.Linear(2, 2), loader, nn.functional.mse_loss)).data
    assert next(feed_of(data, 4).batches)[0].shape == (4, 2)


def test_an_optimizer_is_made_anew_with_its_options_and_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, loss = _parts()
    given = torch.optim.AdamW(model.parameters(), lr=0.125, betas=(0.5, 0.75), weight_decay=0.25)
    called: list[tuple[str, Any]] = []
    given.register_step_pre_hook(lambda optimizer, *_: called.append(("before", optimizer)))
    given.register_step_post_hook(lambda optimizer, *_: called.append(("after", optimizer)))
    make = _built(monkeypatch, lambda: (model, data, loss, given)).make_optimizer
    assert make is not None
    made = make(model.parameters())
    assert type(made) is torch.optim.AdamW and made is not given
    kept = {name: made.param_groups[0][name] for name in ("lr", "betas", "weight_decay")}
    assert kept == {"lr": 0.125, "betas": (0.5, 0.75), "weight_decay": 0.25}
    assert made.param_groups[0]["params"] == list(model.parameters())
    made.step()
    assert called == [("before", made), ("after", made)]


def test_a_function_that_makes_the_optimizer_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(list(parameters))

    assert _built(monkeypatch, lambda: (*_parts(), make)).make_optimizer is make
    assert _built(monkeypatch, lambda: (*_parts(), None)).make_optimizer is None


def test_an_optimizer_of_other_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, loss = _parts()
    other = torch.optim.SGD(nn.Linear(3, 5).parameters(), lr=0.1)
    with pytest.raises(BadInput) as caught:
        _built(monkeypatch, lambda: (model, data, loss, other))
    assert str(caught.value).startswith(
        "workload given_module:build: the optimizer SGD holds a parameter of shape (5, 3) that the model "
    )


def _step(model: Any, batch: Any, optimizers: Any) -> Any:
    return None


def test_a_job_without_a_step_is_the_tuple(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, loss = _parts()
    given = torch.optim.SGD(model.parameters(), lr=0.5)
    job = Job(model=model, data=data, loss=loss, optimizer=given)
    workload = _built(monkeypatch, lambda: job)
    assert (workload.model, workload.data.samples, workload.loss) == (model, data, loss)
    assert workload.own_step is None and workload.make_optimizer is not None


def test_a_job_may_bring_a_step_several_models_and_their_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"generator": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}
    optimizers = tuple(torch.optim.SGD(model.parameters(), lr=0.5) for model in models.values())
    job = Job(model=models, data=[1], optimizer=optimizers, step=_step)
    workload = _built(monkeypatch, lambda: job)
    names = [name for name, _ in workload.model.named_parameters()]
    assert names == ["generator.weight", "generator.bias", "critic.weight", "critic.bias"]
    assert workload.own_step is not None and workload.own_step.models is models
    assert [given.optimizer for given in workload.own_step.optimizers] == list(optimizers)
    assert [group.names for given in workload.own_step.optimizers for group in given.groups] == [
        ("generator.weight", "generator.bias"),
        ("critic.weight", "critic.bias"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 5}, "returned an int as step; expected step(model, batch, optimizers)"),
        (
            {"step": lambda model, batch: None},
            "the step cannot be called as step(model, batch, optimizers): ",
        ),
        ({"step": None, "loss": None}, "returned None as loss; expected a function"),
        ({"loss": 5}, "returned an int as loss; expected a function"),
        ({"model": [nn.Linear(1, 1), 5]}, "returned an int among its models; expected modules"),
        ({"model": {"a": nn.ReLU()}}, "returned a model without parameters to train"),
        ({"model": 5}, "returned an int as model; expected a torch.nn.Module, or a dict or tuple of them"),
        (
            {"model": (nn.Linear(1, 1),), "step": None, "loss": print},
            "returned a tuple of 1 as model; expected a torch.nn.Module",
        ),
        ({"optimizer": ()}, "returned a tuple of 0 as optimizer; one of them is missing"),
        (
            {"optimizer": (torch.optim.SGD, torch.optim.SGD)},
            "returned 2 optimizers, models: 1; with functions of parameters there must be one for each model",
        ),
    ],
)
def test_a_mistake_in_a_job_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    job = Job(**{"model": nn.Linear(2, 2), "data": [1], "step": _step, **changes})
    with pytest.raises(BadInput) as caught:
        _built(monkeypatch, lambda: job)
    assert str(caught.value).startswith(f"workload given_module:build: {message}")
    assert "\n" not in str(caught.value)


def test_the_file_of_a_workload_and_its_digest_are_recorded(tmp_path: Path) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    for file, reference in (("mine.py", "mine.py:build"), ("package/inner.py", "package.inner:build")):
        Path(file).write_text(_GOOD)
        assert _build(reference).counters == {
            "workload_file": str(tmp_path / file),
            "workload_sha256": hashlib.sha256(_GOOD.encode()).hexdigest(),
        }


def test_the_folder_of_a_workload_comes_first_only_while_it_is_loaded() -> None:
    Path("mine.py").write_text("import sys\n\nLOADED_WITH = sys.path[0]\n" + _GOOD)
    _build("mine.py:build")
    here = str(Path.cwd())
    assert here == sys.modules["mine"].LOADED_WITH
    assert sys.path.count(here) == 1
    assert sys.path.index(here) > sys.path.index(str(Path(contextlib.__file__).parent))
