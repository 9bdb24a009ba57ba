"""Every strategy trains like one rank alone: the same parameters after the same steps on the same samples."""

import dataclasses
import itertools
import math
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scalescope.catalog import cards
from scalescope.catalog.setting import settings_of
from scalescope.experiment.trial import Trial
from tests.conftest import TINY
from tests.gloo.many_cases import RANKS, Outcomes, run_cases
from tests.gloo.real_runs import RunsHere

pytestmark = pytest.mark.gloo

_STEPS = 5
_GLOBAL_BATCH = 16
_LR = 0.1
_NEW = ("scratch_ddp", "fsdp", "zero1", "pipeline")
_SMALL = ("--batch-size=16", *[flag for flag in TINY if not flag.startswith("--batch-size")])

# The arithmetic is the same, its order is not: ranks sum parts of a batch that one rank sums at once. That
# changes the last digit of a parameter of size 0.2, by 3e-17 in fp64 and 1.5e-8 in fp32; there is room for
# some tens of such roundings. A mistake is far above: five steps of sgd move parameters by up to 3e-2.
_TOLERANCES = {"fp64": 1e-15, "fp32": 1e-6}
# adamw divides each gradient by its own size, so one that nearly cancels passes on its large relative error;
# only fp64 leaves room for a sharp limit, which is still far below the 5e-1 by which adamw moves parameters.
_ADAMW_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to train: a strategy with some settings, an optimizer, a number format."""

    strategy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "sgd"
    dtype: str = "fp64"
    rest: int = _GLOBAL_BATCH  # samples in the third batch, as where a data set ends

    @property
    def label(self) -> str:
        changed = [f"{name}={value}" for name, value in self.settings.items()]
        return " ".join((self.strategy, *changed, self.optimizer, self.dtype, f"rest={self.rest}"))

    @property
    def reference(self) -> "Case":
        """The same training on one rank."""
        kept = {name: value for name, value in self.settings.items() if name == "precision"}
        return dataclasses.replace(self, strategy="single", settings=kept)

    @property
    def tolerance(self) -> float:
        return _ADAMW_TOLERANCE if self.optimizer == "adamw" else _TOLERANCES[self.dtype]

    @property
    def in_bf16(self) -> bool:
        return "bf16" in self.settings.values()

    def trial(self) -> Trial:
        """The trial with every default of its cards."""
        selection = {"workloads": "mlp", "data": "synthetic", "strategies": self.strategy}
        owners = cards.cards_of_trial("train", selection)
        known = {
            setting.name: setting.default_for("cpu") for owner in owners for setting in settings_of(owner)
        }
        ranks = 1 if self.strategy == "single" else RANKS
        asked = {"strategy": self.strategy, "world_size": ranks, "optimizer": self.optimizer, "lr": _LR}
        sizes = {"input_dim": 16, "hidden_dim": 24, "num_layers": 3, "output_dim": 4}
        return Trial(settings={"benchmark": "train", **known, **sizes, **asked, **self.settings})


def _label(case: Case) -> str:
    return case.label


_ACCUMULATED = {"accumulation_steps": 2}
_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {}),
    ("ddp", {"static_graph": False, "gradient_as_bucket_view": False}),
    ("ddp", {"static_graph": False, **_ACCUMULATED}),
    ("ddp", {"static_graph": True, **_ACCUMULATED}),
    ("scratch_ddp", {}),
    ("scratch_ddp", {"bucket_cap_mb": 0.001}),
    ("scratch_ddp", {"bucket_cap_mb": None}),
    ("scratch_ddp", _ACCUMULATED),
    ("fsdp", {}),
    ("fsdp", {"reshard_after_forward": False}),
    ("fsdp", _ACCUMULATED),
    ("zero1", {}),
    ("zero1", _ACCUMULATED),
    ("pipeline", {"schedule": "gpipe"}),
    ("pipeline", {"schedule": "1f1b"}),
    ("pipeline", {"schedule": "1f1b", "microbatches": 8}),
    ("pipeline", {"schedule": "gpipe", "microbatches": 1}),
]
_EQUAL = [Case(strategy=strategy, settings=settings) for strategy, settings in _VARIANTS] + [
    Case(strategy=strategy, settings=settings, optimizer=optimizer, dtype=dtype)
    for strategy, settings in (*((name, {}) for name in ("ddp", *_NEW)), ("fsdp", _ACCUMULATED))
    for optimizer, dtype in (("adamw", "fp64"), ("sgd", "fp32"))
]
_EQUAL += [
    Case(  # backward runs inside autocast there; with the batch in one piece nothing else can differ
        strategy="pipeline",
        settings={"schedule": "gpipe", "microbatches": 1, "precision": "bf16"},
        dtype="fp32",
    ),
    Case(strategy="pipeline", rest=9),  # three microbatches instead of four
    Case(strategy="pipeline", rest=7),  # one, which is too few for 1f1b
]
_DIFFERENT = [
    Case(strategy=strategy, settings={"without_communication": True})
    for strategy in ("ddp", "scratch_ddp", "fsdp", "zero1")
]
_ROUNDED = Case(strategy="fsdp", settings={"fsdp_param_dtype": "bf16"}, dtype="fp32")
_TOGETHER = (*_EQUAL, *_DIFFERENT, _ROUNDED)
_CASES = {case.label: case for case in (*(case.reference for case in _TOGETHER), *_TOGETHER)}


def _train(label: str, rank: int, directory: Path) -> dict[str, list[float]]:
    """Parameters after the steps, as far as this rank can know them, and its losses."""
    case = _CASES[label]
    with warnings.catch_warnings():
        if case.in_bf16:  # torch says so where a processor has no instructions for it
            warnings.simplefilter("ignore", UserWarning)
        return _trained(case, rank, directory)


def _trained(case: Case, rank: int, directory: Path) -> dict[str, list[float]]:
    import torch

    from scalescope.results.ranks import Heartbeats
    from scalescope.worker.process.group import Group
    from scalescope.worker.process.position import Position
    from scalescope.worker.training.assembly import build_step, build_workload
    from scalescope.worker.training.step import Data
    from tests.builders.workers import run_steps

    trial, device = case.trial(), torch.device("cpu")
    workload = build_workload(trial, Group(rank=rank, world_size=RANKS, joined=False), device)
    dtype = torch.float64 if case.dtype == "fp64" else torch.float32
    workload.model.to(dtype)
    data = Data(synthesize=lambda count, _: (torch.zeros(count, 16, dtype=dtype), None))
    workload = dataclasses.replace(workload, data=data)  # what a pipeline looks at to find its balance
    begin = torch.cat([parameter.detach().flatten() for parameter in workload.model.parameters()])
    step = build_step(trial, workload, device)
    beats = Path(tempfile.mkdtemp(dir=directory)) / "beats"
    Heartbeats(beats, 1, create=True)
    done = run_steps(
        step,
        iter(_batches(case, rank)),
        _STEPS,
        Position(beats, 0, 1),
    )
    parameters = [getattr(part, "full_tensor", lambda part=part: part)() for part in step.module.parameters()]
    values = torch.cat([parameter.detach().flatten() for parameter in parameters])
    return {
        "begin": begin.tolist(),
        "parameters": values.tolist(),
        "losses": torch.stack(done.losses).tolist(),
    }


def _batches(case: Case, rank: int) -> list[Any]:
    """This rank's parts of the same global batches, in the order in which it trains on them."""
    import torch

    trial, generator = case.trial(), torch.Generator().manual_seed(7)
    batches = []
    for step in range(_STEPS):
        count = case.rest if step == 2 else _GLOBAL_BATCH
        vectors = torch.randn(count, 16, generator=generator, dtype=torch.float64)
        classes = torch.randint(4, (count,), generator=generator)
        vectors = vectors.to(torch.float64 if case.dtype == "fp64" else torch.float32)
        parts = trial.replicas * trial.accumulation_steps
        numbers = range((rank % trial.replicas) * trial.accumulation_steps, parts)[: trial.accumulation_steps]
        pairs = list(zip(vectors.chunk(parts), classes.chunk(parts), strict=True))
        batches += [pairs[number] for number in numbers]
    return batches


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What two ranks ended with, and what one alone would have."""

    outcomes: Outcomes

    def ranks(self, case: Case) -> list[dict[str, list[float]]]:
        answers: list[dict[str, list[float]]] = self.outcomes.of(case.label)
        return answers

    def alone(self, case: Case) -> dict[str, list[float]]:
        return self.ranks(case.reference)[0]

    def difference(self, case: Case) -> float:
        """The largest difference of any parameter on any rank from the training on one rank."""
        trained = [answer["parameters"] for answer in self.ranks(case)]
        if case.strategy == "pipeline":  # each rank has a stretch of them
            trained = [list(itertools.chain(*trained))]
        expected = self.alone(case)["parameters"]
        return max(abs(a - b) for values in trained for a, b in zip(values, expected, strict=True))

    def movement(self, case: Case) -> float:
        """The largest change of any parameter in the training on one rank."""
        alone = self.alone(case)
        return max(abs(a - b) for a, b in zip(alone["begin"], alone["parameters"], strict=True))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Real ranks, started once for all cases."""
    return Answers(outcomes=run_cases(_train, tuple(_CASES), tmp_path_factory.mktemp("strategies")))


@pytest.mark.parametrize("case", _EQUAL, ids=_label)
def test_a_strategy_ends_with_the_parameters_of_one_rank(case: Case, answers: Answers) -> None:
    difference = answers.difference(case)
    print(f"{case.label}: largest difference {difference:.1e}, allowed {case.tolerance:.0e}")
    assert difference <= case.tolerance < 1e-3 * answers.movement(case)


@pytest.mark.parametrize("case", _DIFFERENT, ids=_label)
def test_the_comparison_sees_ranks_that_exchange_nothing(case: Case, answers: Answers) -> None:
    assert answers.difference(case) > 1e-3
    first, second = (answer["parameters"] for answer in answers.ranks(case))
    assert first != second or not case.trial().strategy_card.replicated  # shards make one model


def test_parameters_gathered_in_bf16_train_almost_the_same(answers: Answers) -> None:
    difference = answers.difference(_ROUNDED)
    print(f"{_ROUNDED.label}: largest difference {difference:.1e}")
    # Weights and activations of 8 bits, off by 2e-3, add up over four layers to a few percent of a gradient.
    assert _TOLERANCES["fp32"] < difference < 0.05 * answers.movement(_ROUNDED)


@pytest.mark.parametrize("case", [case for case in _EQUAL if case.strategy == "pipeline"], ids=_label)
def test_every_rank_of_a_pipeline_knows_the_loss(case: Case, answers: Answers) -> None:
    expected = answers.alone(case)["losses"]
    for answer in answers.ranks(case):
        assert answer["losses"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.basic
def test_train_with_every_strategy_on_two_ranks(run_here: RunsHere) -> None:
    run = run_here("train", *_SMALL, "--world-size=2", f"--strategy={','.join(_NEW)}")
    assert run.returncode == 0, run.stdout + run.stderr
    rows = {row["strategy"]: row for row in run.summary["results"]["training"]}
    assert set(rows) == set(_NEW)
    for strategy, row in rows.items():
        card, ranks = cards.card("strategies", strategy), run.only(strategy=strategy)["ranks"]
        for rank in ranks:
            assert len(rank["samples"]["step_time_s"]) == len(rank["samples"]["loss"]) == 5
            assert ("parameter_checksum" in rank["counters"]) == card.replicated
        longest = max(math.fsum(rank["samples"]["step_time_s"]) for rank in ranks)
        assert row["samples_per_s"] == pytest.approx(card.replicas(2) * 16 * 5 / longest)


def test_three_stages_train_like_one_rank(run_here: RunsHere) -> None:
    plain = run_here("train", *_SMALL, "--strategy=single")
    staged = run_here("train", *_SMALL, "--world-size=3", "--strategy=pipeline")
    (alone,) = (rank["samples"]["loss"] for rank in plain.only()["ranks"])
    for rank in staged.only()["ranks"]:
        assert rank["samples"]["loss"] == pytest.approx(alone, rel=1e-5)


def test_a_pipeline_of_one_rank_is_refused(run_here: RunsHere) -> None:
    run = run_here("train", *_SMALL, "--world-size=1", "--strategy=pipeline")
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "pipeline" in line and "2" in line
