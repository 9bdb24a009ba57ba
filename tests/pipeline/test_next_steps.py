"""Every command that a run names as its next step passes the checks of one that is typed, or says why not."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from scalescope.cli import app
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.launch.local import launcher as local
from scalescope.report.section import Section, ShownCommand
from scalescope.results.run import Run, load_run
from scalescope.studies import running
from scalescope.studies.stored import explain, present
from tests.builders.requests import with_gpus
from tests.simulated.launcher import TWO_CORES, CostModel, FakeLauncher

Argv = tuple[str, ...]
LOOP = "loss.backward()\noptimizer.step()\n"
SCRIPTS = {
    "joins.py": f"import torch.distributed as dist\ndist.init_process_group()\n{LOOP}",
    "alone.py": f"import torch\n{LOOP}",
    "a folder/joins.py": f"from torch.distributed import init_process_group\n{LOOP}",
}
MACHINES = {"no GPU": TWO_CORES, "one GPU": with_gpus(1), "two GPUs": with_gpus(2)}
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node={world_size}")
SHORT = ("--window", "0.2s", "--repeats", "2", "--output-dir", "my out")
REASON = "rank 0 failed after 19 optimizer steps: ValueError: bad"
COSTS = CostModel(exposed_comm_s={2: 0.05})
RUNS: dict[str, Argv] = {
    "train, script": ("--", "python", "joins.py", "--text", "a b"),
    "train, script elsewhere": ("--", "python", "a folder/joins.py"),
    "train, script alone": ("--", "python", "alone.py"),
    "train, module": ("--", "python", "-m", "joins"),
    "train, torchrun": ("--world-size", "2", "--", "torchrun", "--nproc-per-node=2", "joins.py"),
    "train, another launcher": ("--", "deepspeed", "joins.py"),
    "train, any ranks": ("--", *TORCHRUN, "joins.py"),
    "train, batch": ("--batch-size", "8,16", "--", "python", "joins.py", "-b", "{batch_size}"),
    "train, own": ("--batch-size", "50"),
    "scale, any ranks": ("--world-size", "1,2", "--", *TORCHRUN, "joins.py"),
    "scale, one rank": ("--world-size", "1", "--", "python", "joins.py"),
    "scale, own": ("--batch-size", "50", "--world-size", "1"),
    "tune, script": ("--levers", "num_workers", "--", "python", "joins.py"),
    "run, script": ("--", "python", "joins.py"),
    "run, own": ("--batch-size", "50"),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts, in which commands are started."""
    path = tmp_path / "my proj"
    for name, text in SCRIPTS.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    monkeypatch.chdir(path)
    return path


def use(machine: Machine, monkeypatch: pytest.MonkeyPatch, failing_ranks: int | None = None) -> None:
    """Let every verb measure on this machine; training on at least so many ranks fails."""

    def outcome(trial: Trial, launch: int) -> Outcome | None:
        if failing_ranks is None or trial.world_size < failing_ranks or trial.benchmark == "comm":
            return None
        return Outcome(status="failed", reason=REASON)

    for module in (local, running):
        monkeypatch.setattr(module, "LocalLauncher", lambda: FakeLauncher(COSTS, machine, outcome))


def call(*words: str) -> object:
    with pytest.raises(SystemExit) as leaving:
        app.main(list(words))
    return leaving.value.code


def measured(name: str) -> Run:
    verb, flags = name.partition(",")[0], RUNS[name]
    call(verb, *SHORT, *flags)
    return load_run(Path("my out"))


def commands_in(sections: tuple[Section, ...]) -> Iterator[ShownCommand]:
    for section in sections:
        yield from section.commands
        yield from (command for listed in section.findings for command in listed.commands)


def commands_of(run: Run) -> list[ShownCommand]:
    report = present(run)
    next_step = [] if report.next_step is None else [report.next_step]
    return [*next_step, *commands_in(report.sections), *commands_in(explain(run.path))]


def refuse_refusal(argv: Argv, capsys: pytest.CaptureFixture[str]) -> None:
    """Check a command as it would be typed: the verb's own flags, and what its request plans here."""
    capsys.readouterr()
    verb = app.app.get_command(click.Context(app.app), argv[1])
    assert verb is not None
    if any("--dry-run" in option.opts for option in verb.params):
        position = argv.index("--") if "--" in argv else len(argv)
        argv = (*argv[:position], "--dry-run", *argv[position:])
        assert call(*argv[1:]) == 0, f"{shlex.join(argv)}\n{capsys.readouterr().err}"
    elif argv[1] == "predict":
        assert call(*argv[1:]) == 0, f"{shlex.join(argv)}\n{capsys.readouterr().err}"
    else:
        verb.make_context(argv[1], list(argv[2:]))


@pytest.mark.parametrize(
    ("name", "machine", "failing_ranks"),
    [
        (name, machine, failing)
        for machine, failing in ((*((each, None) for each in MACHINES), ("no GPU", 1), ("no GPU", 2)))
        for name, flags in RUNS.items()
        if machine != "one GPU" or not {"2", "1,2"} & set(flags)  # which is refused there
    ],
)
def test_every_named_command_passes_the_checks_of_a_typed_one(
    name: str,
    machine: str,
    failing_ranks: int | None,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(MACHINES[machine], monkeypatch, failing_ranks)
    run = measured(name)
    commands = commands_of(run)
    assert commands
    monkeypatch.chdir(project.parent)
    use(MACHINES[machine], monkeypatch)
    for argv in sorted({command.argv for command in commands if command.argv}):
        assert not {"--split-gpu", "--oversubscribe"} & set(argv)
        refuse_refusal(argv, capsys)


def next_of(name: str) -> ShownCommand:
    step = present(measured(name)).next_step
    assert step is not None
    return step


def test_a_plain_script_that_joins_goes_on_under_torchrun(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(TWO_CORES, monkeypatch)
    argv = next_of("train, script").argv
    assert argv[1] == "scale"
    assert argv[argv.index("--world-size") + 1] == "1,2"
    assert argv[argv.index("--") + 1 :] == (*TORCHRUN, str(project / "joins.py"), "--text", "a b")


def test_of_a_script_that_trains_alone_it_is_said_what_it_lacks(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(TWO_CORES, monkeypatch)
    step = next_of("train, script alone")
    assert step.argv == ()
    assert "alone.py does not call torch.distributed.init_process_group" in step.label


def test_one_gpu_leads_to_no_ranks_that_share_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(with_gpus(1), monkeypatch)
    assert next_of("train, script").argv[1] in ("predict", "report")


@pytest.mark.parametrize("name", ["train, script", "scale, any ranks", "run, script"])
def test_what_failed_is_not_resumed(name: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(TWO_CORES, monkeypatch, failing_ranks=1)
    step = next_of(name)
    assert step.argv[1] == name.partition(",")[0]
    assert "--resume" not in step.argv


@pytest.mark.parametrize(
    ("name", "failing_ranks"),
    [
        *((name, 1) for name in ("train, script", "scale, one rank", "tune, script", "run, script")),
        ("scale, any ranks", 2),
    ],
)
def test_a_failure_is_said_once_before_everything_else(
    name: str,
    failing_ranks: int,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(TWO_CORES, monkeypatch, failing_ranks)
    measured(name)
    said = capsys.readouterr().out
    assert said.count(REASON) == 1
    assert said.index(REASON) < said.index("In short:")
    assert call("explain", "my out") == 0
    first, *others = [line for line in capsys.readouterr().out.splitlines() if line.strip()][1:]
    assert REASON in first
    assert not any(REASON in line for line in others)
