"""Training commands: their words, what may be asked with one, and what launches of one show."""

from pathlib import Path
from typing import Any

import pytest

from scalescope.catalog.benchmarks.train import Train
from scalescope.errors import BadInput, CannotRun
from scalescope.experiment.command_line import (
    CommandNodes,
    can_be_filled,
    filled_words,
    joined,
    number_of_ranks,
    on_any_ranks,
    takes_world_size,
    words_of,
)
from scalescope.experiment.expand import Expansion, expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.explanations import job_key
from scalescope.experiment.given import Entries, Given
from scalescope.experiment.observed import (
    ObservedLaunch,
    as_observed,
    observations,
    replicas_of,
    without_observations,
)
from scalescope.experiment.record import to_yaml
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import read_experiment_file
from tests.simulated.launcher import TWO_CORES

COMMAND = "torchrun --nproc-per-node={world_size} train.py"


def flags_of(**texts: object) -> Entries:
    """Flags; a list is a sweep, and `vary__x` is a value of the placeholder x."""
    flags: Entries = {}
    for name, value in texts.items():
        values = value if isinstance(value, list) else [value]
        flag = f"--{name.partition('__')[0].replace('_', '-')}"
        flags[name.replace("__", ".")] = tuple(Given(str(text), flag) for text in values)
    return flags


def expanded(**texts: object) -> Expansion:
    return expand(build_experiment("scale", "train", {}, flags_of(**texts), {}), TWO_CORES)


def test_placeholders_take_the_values_of_a_trial() -> None:
    command = f"{COMMAND} --bs {{batch_size}} --lr {{rate}} --format '{{epoch}} {{}}'"
    trials = expanded(command=command, world_size=2, batch_size=8, vary__rate=["0.1", "0.2"]).trials
    begin = ["torchrun", "--nproc-per-node=2", "train.py", "--bs", "8", "--lr"]
    for trial, rate in zip(trials, ("0.1", "0.2"), strict=True):
        assert filled_words(trial) == [*begin, rate, "--format", "{epoch} {}"]
        assert trial.label == f"script, 2 ranks, rate {rate}, batch 8"


def test_words_survive_being_joined() -> None:
    for words in (["a", "b c", "{world_size}"], ["--x={n}", "it's", "{a,b}", "$HOME", ""], ["-c", "1;2"]):
        assert words_of(joined(words)) == words
    (plain,), (quoted,) = (
        expanded(command=text).trials for text in ("python train.py -x 1", "python 'train.py' -x \"1\"")
    )
    assert plain.trial_id == quoted.trial_id


def test_nothing_that_the_script_decides_is_in_a_trial() -> None:
    (trial,) = expanded(command="python train.py").trials
    assert not {"optimizer", "lr", "epochs", "steps_per_epoch", "eval", "seed"} & set(trial.settings)
    assert trial.settings["precision"] is None
    assert (trial.strategy, trial.optimizer, trial.precision) == ("script", "script", "script")
    assert trial.options(Train).is_timed
    assert not trial.has_known_batch and trial.label == "script, 1 rank"


def test_a_format_is_asked_of_a_command_as_of_other_jobs() -> None:
    (trial,) = expanded(command="python train.py", precision="bf16").trials
    assert trial.precision == "bf16"
    (trial,) = expanded(command="python train.py", precision="script", pin_memory="script").trials
    assert trial == expanded(command="python train.py").trials[0]
    with pytest.raises(CannotRun, match="precision tf32 requires a CUDA GPU"):
        expanded(command="python train.py", precision="tf32")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"lr": 1}, "--lr cannot be used with a command: the script decides"),
        ({"strategy": "ddp"}, "--strategy cannot be used with a command: the script decides"),
        ({"hidden_dim": 8}, "--hidden-dim cannot be used with a command: the script decides"),
        ({"workload": "mlp"}, "--workload cannot be used with a command; give only one of them"),
        ({"batch_size": 8}, "--batch-size: write {batch_size} in the command where its value belongs"),
        (
            {"command": "a {batch_size}"},
            "the command has {batch_size}, but no value for it; add --batch-size",
        ),
        (
            {"command": "a", "world_size": [1, 2]},
            "--world-size: several world sizes require {world_size} in the command, for instance "
            "--nproc-per-node={world_size}",
        ),
        ({"vary__depth": 2}, "--vary: the command has no {depth}"),
        ({"vary__batch_size": 2}, "--vary: {batch_size} is the value of --batch-size; give that flag"),
        ({"vary__1x": 2}, "--vary: '1x' is not a name of letters, digits and _"),
        ({"command": "a {x}", "vary__x": [1, 1]}, "--vary: x: the same value is given twice"),
        ({"command": "a 'b"}, "--command: No closing quotation"),
        (
            {"link": "1gbit"},
            "--link cannot be used with a command: its launcher could not reach ranks in other network "
            "namespaces",
        ),
    ],
)
def test_what_does_not_fit_a_command_is_refused_by_name(texts: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        expanded(**{"command": COMMAND, **texts})
    assert str(refused.value) == message


def test_what_only_commands_take_requires_one() -> None:
    for name in ("vary__x", "step_at", "keep_running", "samples_per_step"):
        with pytest.raises(BadInput, match=r"requires a training command: put it after --$"):
            expanded(**{name: 1})


@pytest.mark.parametrize(("benchmark", "in_file"), [("comm", False), ("memory", True)])
def test_other_verbs_refuse_a_command(benchmark: str, in_file: bool) -> None:
    entries = flags_of(command=COMMAND)
    file, flags = (entries, {}) if in_file else ({}, entries)
    message = f"--command: {benchmark} cannot measure a command; train, scale, tune and run can"
    with pytest.raises(BadInput, match=message):
        build_experiment(benchmark, benchmark, file, flags, {})


def test_a_command_is_filled_as_far_as_it_has_placeholders() -> None:
    (trial,) = expanded(command="torchrun --nproc-per-node=2 train.py", world_size=2).trials
    assert filled_words(trial) == ["torchrun", "--nproc-per-node=2", "train.py"]
    (trial,) = expanded(command=COMMAND).trials
    assert can_be_filled(trial)
    assert not can_be_filled(trial.replace(global_batch_size=8))
    command = "python -m scalescope.attach --job {attach} -- train.py {other}"
    (trial,) = expanded(command=command, world_size=1).trials
    assert filled_words(trial, "/x/job.json")[-4:] == ["/x/job.json", "--", "train.py", "{other}"]
    assert "{attach}" in filled_words(trial)


def test_a_stored_request_makes_the_same_trials(tmp_path: Path) -> None:
    begun = expanded(
        command=f"{COMMAND} --bs {{batch_size}} --depth {{depth}}",
        world_size=[1, 2],
        batch_size=[8, 16],
        vary__depth=["2", "four"],
        num_workers=2,
    )
    file = tmp_path / "e.yaml"
    file.write_text(to_yaml(begun.experiment), encoding="utf-8")
    again = expand(build_experiment("scale", "train", read_experiment_file(file), {}, {}), TWO_CORES)
    settings = {trial.trial_id: trial.settings for trial in begun.trials}
    assert {trial.trial_id: trial.settings for trial in again.trials} == settings
    assert "vary: {depth: ['2', four]}" in file.read_text(encoding="utf-8").splitlines()


_BY_NODE = "srun --ntasks={nodes} torchrun --nproc-per-node={ranks_per_node} --master-addr={first_node}"
_TWO_NODES = CommandNodes(names=("n1", "n2"), ranks_per_node=4)


def test_a_command_can_take_its_ranks_by_node() -> None:
    for ranks, nodes, words in (
        (2, CommandNodes(), ["1", "2", "localhost"]),
        (2, _TWO_NODES, ["1", "2", "n1"]),
        (4, _TWO_NODES, ["1", "4", "n1"]),
        (8, _TWO_NODES, ["2", "4", "n1"]),
    ):
        (trial,) = expanded(command=_BY_NODE, world_size=ranks).trials
        filled = filled_words(trial, nodes=nodes)
        assert [word.partition("=")[2] for word in filled if "=" in word] == words


def test_ranks_by_node_are_a_number_of_ranks_unless_the_name_is_varied() -> None:
    assert takes_world_size("a {world_size}") and takes_world_size("a {nodes} {ranks_per_node}")
    assert not takes_world_size("a {first_node}")
    assert not takes_world_size("a {nodes}", ["nodes"])
    here, there, other = (
        expanded(command=f"python {path} --config={path}.yaml").trials[0]
        for path in ("/a/train.py", "/b/train.py", "/b/other.py")
    )
    assert job_key(here) == job_key(there) != job_key(other)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (6, "6 ranks do not fill nodes of 4 ranks; use a multiple of 4"),
        (12, "12 ranks at 4 per node require 3 nodes, and the job has 2"),
    ],
)
def test_ranks_that_do_not_fill_the_nodes_are_refused(ranks: int, message: str) -> None:
    _TWO_NODES.check("srun --ntasks={world_size} python train.py", ranks)
    with pytest.raises(BadInput, match=message):
        _TWO_NODES.check(_BY_NODE, ranks)


# what launches show


def trial_of(ranks: int, command: str = COMMAND, **settings: object) -> Trial:
    texts = {"command": command, "world_size": ranks, **settings}
    flags = {name: (Given(str(value), f"--{name}"),) for name, value in texts.items()}
    (trial,) = expand(build_experiment("scale", "train", {}, flags, {}), TWO_CORES).trials
    return trial


def launch_of(trial: Trial, samples: float | None, **observed: object) -> ObservedLaunch:
    """A launch whose ranks counted so many samples per step."""
    counters: dict[str, Any] = {f"observed/{name}": value for name, value in observed.items()}
    counters |= {"measured_steps": 10}
    counters |= {} if samples is None else {"measured_samples": 10 * samples}
    return ObservedLaunch(trial=trial, ranks=[counters] * trial.world_size)


def observed_trials(*launches: ObservedLaunch) -> list[Trial]:
    facts = observations(launches)
    return [as_observed(launch.trial, facts) for launch in launches]


def test_samples_say_whether_scaling_is_weak_or_strong() -> None:
    one, two = observed_trials(launch_of(trial_of(1), 32), launch_of(trial_of(2), 32.1))
    assert (one.mode, two.mode) == ("weak", "weak")
    assert (one.rank_batch_size, two.rank_batch_size, two.samples_per_step) == (32, 32, 64)
    one, two = observed_trials(launch_of(trial_of(1), 64), launch_of(trial_of(2), 32))
    assert (one.mode, two.mode) == ("strong", "strong")
    assert (two.given_batch_size, two.rank_batch_size, two.samples_per_step) == (64, 32, 64)
    (two,) = observed_trials(launch_of(trial_of(2), 16))
    assert (two.mode, two.rank_batch_size) == ("weak", 16)
    one, two = observed_trials(launch_of(trial_of(1), 64), launch_of(trial_of(2), 48))
    assert (one.rank_batch_size, two.rank_batch_size) == (64, 48)
    other = as_observed(trial_of(4), observations([launch_of(trial_of(1), 64), launch_of(trial_of(2), 48)]))
    assert not other.has_known_batch


def test_a_batch_that_was_given() -> None:
    trial = trial_of(2, f"{COMMAND} --batch {{global_batch_size}}", global_batch_size=64)
    (two,) = observed_trials(launch_of(trial, 32))
    assert (two.mode, two.global_batch_size, two.rank_batch_size) == ("strong", 64, 32)
    trial = trial_of(1, f"{COMMAND} --batch {{batch_size}}", batch_size=8)
    (accumulating,) = observed_trials(launch_of(trial, 32))
    assert (accumulating.batch_size, accumulating.rank_batch_size) == (8, 32)
    launches = [launch_of(trial_of(ranks, samples_per_step=24), None) for ranks in (1, 2)]
    assert [trial.rank_batch_size for trial in observed_trials(*launches)] == [24, 24]


def test_without_a_count_of_every_rank_nothing_is_known() -> None:
    (trial,) = observed_trials(launch_of(trial_of(2), None))
    assert not trial.has_known_batch
    assert (trial.rank_batch_size, trial.given_batch_size, trial.samples_per_step) == (0, 0, 0)
    assert (trial.mode, trial.label) == ("weak", "script, 2 ranks")
    known = launch_of(trial_of(2), 32)
    partly = ObservedLaunch(trial=known.trial, ranks=[known.ranks[0], {"measured_steps": 10}])
    (trial,) = observed_trials(partly)
    assert not trial.has_known_batch


def ranks_with(*inputs: str | None, **facts: object) -> list[dict[str, Any]]:
    """What ranks tell about who shares their batch, each with its input."""
    common = {"averaging_ranks": None, "cut_ranks": None, "sends": 0, **facts}
    return [
        {f"observed/{name}": value for name, value in {**common, "input_hash": i}.items()} for i in inputs
    ]


@pytest.mark.parametrize(
    ("ranks", "replicas"),
    [
        (ranks_with("a"), 1),
        (ranks_with("a", "b", averaging_ranks=2), 2),
        (ranks_with("a", "a", averaging_ranks=2), 2),  # a benchmark that feeds all ranks the same
        (ranks_with("a", "a", "b", "b", averaging_ranks=2), 2),
        (ranks_with("a", "a", cut_ranks=2), 1),
        (ranks_with("a", "a", "b", "b", cut_ranks=2), 2),
        (ranks_with("a", "a", "a", "a", cut_ranks=2), None),
        (ranks_with("a", "b", cut_ranks=2), None),
        (ranks_with("a", "b"), 2),
        (ranks_with("a", "a"), None),
        (ranks_with("a", None), None),
        (ranks_with("a", "b", averaging_ranks=2, sends=3), None),  # stages of pipelines
        (ranks_with("a", "b", "c", averaging_ranks=2), None),
        ([{}, {}], 2),  # of earlier versions
    ],
)
def test_ranks_that_share_a_batch_are_one_replica(ranks: list[dict[str, Any]], replicas: int | None) -> None:
    assert replicas_of(ranks) == replicas


def test_a_shared_batch_counts_once() -> None:
    counters = {"measured_steps": 10, "measured_samples": 640}
    shared = [{**facts, **counters} for facts in ranks_with("a", "a", cut_ranks=2)]
    two = ObservedLaunch(trial=trial_of(2), ranks=shared)
    (trial,) = observed_trials(two)
    assert (trial.replicas, trial.rank_batch_size, trial.samples_per_step, trial.mode) == (
        1,
        64,
        64,
        "strong",
    )
    one, trial = observed_trials(launch_of(trial_of(1), 64), two)
    assert (one.mode, one.samples_per_step, trial.mode, trial.samples_per_step) == (
        "strong",
        64,
        "strong",
        64,
    )
    four = [{**facts, **counters} for facts in ranks_with("a", "a", "b", "b", cut_ranks=2)]
    pairs = observed_trials(two, ObservedLaunch(trial=trial_of(4), ranks=four))
    assert [(trial.replicas, trial.samples_per_step) for trial in pairs] == [(1, 64), (2, 128)]
    unknown = [{**facts, **counters} for facts in ranks_with("a", "a")]
    (trial,) = observed_trials(ObservedLaunch(trial=trial_of(2), ranks=unknown))
    assert not trial.has_known_batch


def test_the_unit_and_the_wrapper_are_named() -> None:
    (trial,) = observed_trials(launch_of(trial_of(2), 4096, unit="tokens"))
    assert trial.settings["observed_unit"] == "tokens"
    assert trial.label == "script, 2 ranks, batch 4096 tokens"
    one, two = observed_trials(
        launch_of(trial_of(1), 8, wrapper="none"), launch_of(trial_of(2), 8, wrapper="fsdp2")
    )
    assert one.settings["observed_wrapper"] == two.settings["observed_wrapper"] == "fsdp2"


@pytest.mark.parametrize(("values", "expected"), [((0, 0), False), ((0, 1), True)])
def test_a_loader_is_one_that_any_launch_showed(values: tuple[int, int], expected: bool) -> None:
    launches = [launch_of(trial_of(n), 8, loader=value) for n, value in zip((1, 2), values, strict=True)]
    assert observed_trials(*launches)[0].settings["observed_loader"] is expected


def test_jobs_with_other_values_are_apart() -> None:
    small = trial_of(1, f"{COMMAND} -b {{batch_size}}", batch_size=8)
    large = trial_of(1, f"{COMMAND} -b {{batch_size}}", batch_size=64)
    assert [t.rank_batch_size for t in observed_trials(launch_of(small, 8), launch_of(large, 64))] == [8, 64]


def test_observations_leave_the_identity_and_can_be_taken_away() -> None:
    asked = trial_of(2)
    (trial,) = observed_trials(launch_of(asked, 8, wrapper="ddp", unit="samples", loader=1))
    assert trial.trial_id == asked.trial_id
    assert trial.settings != asked.settings
    assert without_observations(trial).settings == asked.settings


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("python train.py", "torchrun --standalone --nproc-per-node={world_size} train.py"),
        ("python3.12 -u train.py -x", "torchrun --standalone --nproc-per-node={world_size} train.py -x"),
        ("torchrun train.py", "torchrun --nproc-per-node={world_size} train.py"),
        (
            "torchrun --nnodes 1 --nproc-per-node 4 a.py",
            "torchrun --nnodes 1 --nproc-per-node {world_size} a.py",
        ),
        (
            "python -m torch.distributed.run --nproc_per_node=4 a.py --nproc_per_node=3",
            "python -m torch.distributed.run --nproc_per_node={world_size} a.py --nproc_per_node=3",
        ),
        ("torchrun --nnodes=2 --nproc-per-node=4 a.py", None),
        ("python -c pass", None),
        ("python", None),
        ("accelerate launch a.py", None),
    ],
)
def test_a_command_on_any_number_of_ranks(command: str, started: str | None) -> None:
    words = on_any_ranks(command.split())
    assert (None if words is None else joined(words)) == started


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nproc-per-node=4 a.py", 4),
        ("torchrun --nproc_per_node 2 a.py", 2),
        ("torchrun --nproc-per-node=auto a.py", None),
        ("python a.py --nproc-per-node=4", None),
    ],
)
def test_the_number_of_ranks_that_a_command_gives(command: str, ranks: int | None) -> None:
    assert number_of_ranks(command.split()) == ranks
