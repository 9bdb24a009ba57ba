"""Acted commands as real processes: a result or one clear line why not, and nothing left running."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalescope.errors import BadInput, Interrupted
from scalescope.launch.local import logs
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.launch.probing import LOOPBACK
from tests.builders.commands import SCRIPT, Commands, Recorder, command_trial
from tests.gloo.real_runs import reset_signal_handlers
from tests.speed import limit, patience

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

_ATTACH = "start it with `python -m scalescope.attach -- ...`"


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path / "run")


def _lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_for(file: Path) -> str:
    deadline = time.monotonic() + patience(20)
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{file} was not written")


@pytest.mark.basic
def test_a_command_that_trains_is_measured(commands: Commands) -> None:
    outcome = commands.act("train", "{world_size}", world_size=2)
    assert (outcome.status, outcome.reason, outcome.notes) == ("ok", None, [])
    assert [record.rank for record in outcome.records] == [0, 1]
    assert [record.counters["measured_steps"] for record in outcome.records] == [8, 8]
    assert [placement.line for placement in commands.watcher.placements] == ["rank 0", "rank 1"]
    assert commands.watcher.fractions[-1] == 1.0


def test_load_is_sampled_beside_a_command(commands: Commands) -> None:
    commands.telemetry = True
    assert commands.act("train").telemetry["load"]["cores"] >= 1


@pytest.mark.basic
def test_the_command_runs_in_our_folder_with_its_words_and_our_variables(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    words = ("{world_size}", "{other}", "'a b'", "{size}")
    outcome = commands.act("show_environment", *words, env={"X": "1"}, threads_per_rank=3, vary={"size": "7"})
    assert outcome.status == "ok"
    environment = json.loads((commands.path / "environment.json").read_text())
    assert environment["argv"][1:] == ["show_environment", "1", "{other}", "a b", "7"]
    assert environment["cwd"] == os.getcwd()
    assert (environment["X"], environment["OMP_NUM_THREADS"]) == ("1", "3")
    assert environment["GLOO_SOCKET_IFNAME"] == LOOPBACK["GLOO_SOCKET_IFNAME"]
    assert environment["NCCL_SOCKET_IFNAME"] == "eth7"
    hook, mine = environment["PYTHONPATH"].split(os.pathsep)
    assert mine == "/mine" and Path(hook).parent == Path(environment["SCALESCOPE_ATTACH"]).parent
    assert not Path(hook).exists()  # it was private to the launch
    job = json.loads((commands.path / "job.json").read_text())
    assert (job["parent"], job["environment"], job["cpus"]) == (os.getpid(), [], [])


def test_ranks_are_pinned_as_those_of_other_launches(commands: Commands) -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert commands.act("show_environment", pin_cores="yes").status == "ok"
    job = json.loads((commands.path / "job.json").read_text())
    assert job["cpus"] == [cores[:1]]


def test_what_the_user_sets_by_env_stays(commands: Commands) -> None:
    assert commands.act("show_environment", env={"OMP_NUM_THREADS": "5"}).status == "ok"
    assert json.loads((commands.path / "environment.json").read_text())["OMP_NUM_THREADS"] == "5"


def test_a_program_that_does_not_exist_or_cannot_run_is_bad_input(commands: Commands, tmp_path: Path) -> None:
    outcome = commands.launch(command_trial("no-such-torchrun --nproc-per-node=1 train.py"))
    assert (outcome.status, outcome.bad_input) == ("failed", True)
    assert str(outcome.reason).startswith("no-such-torchrun: command not found; ")
    script = tmp_path / "train.py"
    script.touch()
    outcome = commands.launch(command_trial(str(script)))
    assert (outcome.status, outcome.bad_input) == ("failed", True)
    assert str(outcome.reason).startswith(f"{script}: is not executable; ")


def test_a_program_that_the_system_refuses_is_named(commands: Commands, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    outcome = commands.launch(command_trial(str(script)))
    assert outcome.status == "failed"
    assert f"exited with code 1: {script}: could not be started: " in str(outcome.reason)


def test_a_placeholder_without_a_value_is_refused_before_anything_runs() -> None:
    trial = command_trial("train {batch_size}")
    with pytest.raises(BadInput, match="--batch-size"):
        LocalLauncher(fork=False).check(trial)
    LocalLauncher(fork=False).check(trial.replace(batch_size=4))


@pytest.mark.basic
def test_a_crash_has_its_code_and_its_error_in_the_reason_and_its_traceback_in_the_log(
    commands: Commands,
) -> None:
    outcome = commands.act("crash")
    assert (outcome.status, outcome.bad_input) == ("failed", False)
    assert outcome.reason == "the command exited with code 3: ValueError: the data is gone"
    assert outcome.log == str(commands.log())
    assert 'raise ValueError("the data is gone")' in commands.log().read_text()


def test_a_command_that_a_signal_ends_is_named_with_it(commands: Commands) -> None:
    outcome = commands.act("be_killed")
    assert (outcome.status, outcome.reason) == ("failed", "the command was killed by SIGSEGV")


@pytest.mark.basic
def test_the_rank_that_failed_first_is_named(commands: Commands) -> None:
    outcome = commands.act("rank_fails", "{world_size}", world_size=2)
    assert (outcome.status, outcome.rank, outcome.bad_input) == ("failed", 0, False)
    assert (outcome.step, outcome.reason) == (
        19,
        "rank 0 failed after 19 optimizer steps: ValueError: mine",
    )


def test_a_rank_that_refuses_the_request_ends_the_launch(commands: Commands) -> None:
    outcome = commands.act("rank_refuses")
    assert (outcome.status, outcome.bad_input) == ("failed", True)
    assert outcome.reason == "the steps have no period"


_INVALID = {
    "nothing 1": f"scalescope was not loaded by the command's Python; {_ATTACH}",
    """report 1 '{"torch": false, "error": "Python 3.9 is too old"}'""": (
        "scalescope could not be loaded by the command's Python: Python 3.9 is too old"
    ),
    """report 1 '{"torch": false, "steps": 0}'""": (
        "the command never imported torch, so there was no training step to measure"
    ),
    """report 1 '{"steps": 0}'""": (
        "the command made no optimizer step; call scalescope.step() once per step, or give --step-at"
    ),
    """report 1 '{"steps": 1}'""": (
        "the command made 1 optimizer step; 10 are needed, warm-up included: let it train longer"
    ),
    """report 1 '{"steps": 40}'""": (
        "the command made 40 optimizer steps and ended before the measurement finished; "
        "let it train longer, or shorten --window"
    ),
}


@pytest.mark.parametrize("arguments", _INVALID)
def test_a_command_that_ends_well_and_cannot_be_measured_says_why(commands: Commands, arguments: str) -> None:
    outcome = commands.act(arguments)
    assert (outcome.status, outcome.bad_input) == ("invalid", True)
    assert outcome.reason == _INVALID[arguments]
    assert outcome.log == str(commands.log())


_ADVICE = "put {world_size} where its launcher takes the number"


@pytest.mark.basic
@pytest.mark.parametrize(
    ("words", "world_size", "reason"),
    [
        ("1", 2, f"the command ran 1 rank, but 2 were requested; {_ADVICE}"),
        ("2", 1, f"the command ran 2 ranks, but 1 was requested; {_ADVICE}"),
        (
            "3 {world_size}",
            2,
            "the command ran 3 ranks, but 2 were requested; its launcher does not follow {world_size}",
        ),
    ],
)
def test_another_number_of_ranks_than_asked_for_is_invalid(
    commands: Commands, words: str, world_size: int, reason: str
) -> None:
    outcome = commands.act("train", words, world_size=world_size)
    assert (outcome.status, outcome.bad_input) == ("invalid", True)
    assert outcome.reason == reason


def test_a_rank_that_refuses_the_number_of_ranks_gets_the_advice_for_its_command(commands: Commands) -> None:
    outcome = commands.act("rank_refuses_the_others", "1 {world_size}", world_size=2)
    assert (outcome.status, outcome.bad_input) == ("invalid", True)
    assert outcome.reason == (
        "the command ran 1 rank, but 2 were requested; its launcher does not follow {world_size}"
    )


def test_a_rank_that_did_not_load_us_makes_the_launch_invalid(commands: Commands) -> None:
    outcome = commands.act("lose_a_rank", "{world_size}", world_size=2)
    assert (outcome.status, outcome.bad_input) == ("invalid", True)
    assert outcome.reason == f"scalescope was not loaded by rank 1; {_ATTACH}"


def test_a_rank_that_never_loads_us_is_not_waited_for_without_end(commands: Commands) -> None:
    commands.limits = {"init_timeout": limit(2)}
    outcome = commands.act("start_one_rank_only", "{world_size}", world_size=2)
    assert (outcome.status, outcome.reason) == (
        "invalid",
        f"scalescope was not loaded by rank 1; {_ATTACH}",
    )


def test_a_command_that_never_begins_to_train_hangs(commands: Commands) -> None:
    commands.limits = {"init_timeout": limit(2)}
    outcome = commands.act("wait_for_signal")
    assert (outcome.status, outcome.bad_input) == ("hang", False)
    assert outcome.reason == (
        f"the command made no training step within {limit(2):g} s; --init-timeout gives it longer"
    )
    assert not _lives(int((commands.path / "pid").read_text()))


@pytest.mark.basic
def test_a_rank_that_stops_moving_hangs(commands: Commands) -> None:
    commands.limits = {"warmup_timeout": 0.5}
    outcome = commands.act("start_one_rank_only")
    assert (outcome.status, outcome.rank) == ("hang", 0)
    assert str(outcome.reason).startswith("rank 0 hangs in its training: no progress for ")


def test_much_output_does_not_hide_a_traceback(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LARGEST_BYTES", 1 << 20)
    outcome = commands.act("flood_and_crash")
    assert outcome.reason == "the command exited with code 3: ValueError: the data is gone"
    assert commands.log().stat().st_size <= 1 << 20


def test_endless_output_does_not_fill_the_disk(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LARGEST_BYTES", 1 << 20)
    commands.limits = {"init_timeout": limit(2)}
    assert commands.act("flood").status == "hang"
    assert commands.log().stat().st_size <= 1 << 20


def test_a_child_in_another_session_is_gone_with_the_launch(commands: Commands) -> None:
    outcome = commands.act("leave_a_child")
    assert outcome.status == "ok"
    assert not _lives(int((commands.path / "child").read_text()))


def test_processes_of_others_are_left_alone(commands: Commands) -> None:
    other = subprocess.Popen(
        [sys.executable, "-I", "-c", "import time; time.sleep(600)"],
        env={**os.environ, "SCALESCOPE_ATTACH": "/another/job.json"},
    )
    try:
        assert commands.act("leave_a_child").status == "ok"
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_command_that_does_not_end_after_its_ranks_costs_no_result(commands: Commands) -> None:
    commands.limits = {"teardown_timeout": 0.3}
    outcome = commands.act("train_and_stay")
    assert outcome.status == "ok" and len(outcome.records) == 1
    assert outcome.notes == ["the command did not end within 0.3 s after its ranks were done, and was killed"]


def test_a_spent_budget_ends_also_a_command_that_ignores_sigterm(commands: Commands) -> None:
    commands.deadline = time.monotonic() + limit(2)
    outcome = commands.act("ignore_sigterm")
    assert (outcome.status, outcome.stopped_by) == ("interrupted", "budget")
    assert not _lives(int((commands.path / "pid").read_text()))


def test_an_interruption_ends_the_command_and_goes_on(commands: Commands) -> None:
    def interrupt() -> None:
        if (commands.path / "pid").exists():
            raise Interrupted(signal.SIGINT)

    commands.watcher = Recorder(interrupt)
    with pytest.raises(Interrupted):
        commands.act("ignore_sigterm", steps_per_epoch=100)
    assert not _lives(int((commands.path / "pid").read_text()))


@pytest.mark.basic
def test_a_command_that_keeps_running_is_waited_for_to_its_own_end(commands: Commands) -> None:
    commands.limits = {"teardown_timeout": 0.1}
    outcome = commands.act("train_on", keep_running=True)
    assert (outcome.status, len(outcome.records)) == ("ok", 1)
    assert outcome.notes == ["the command ended with code 5 after it was measured"]
    assert (commands.path / "saved").exists()


def test_a_command_that_keeps_running_is_changed_in_nothing(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", *LOOPBACK):
        monkeypatch.delenv(name, raising=False)
    outcome = commands.act("show_environment", keep_running=True, pin_cores="yes", env={"X": "1"})
    assert outcome.status == "ok"
    environment = json.loads((commands.path / "environment.json").read_text())
    assert {"OMP_NUM_THREADS", *LOOPBACK}.isdisjoint(environment) and environment["X"] == "1"
    job = json.loads((commands.path / "job.json").read_text())
    assert (job["parent"], job["environment"], job["cpus"]) == (0, [], [])


def test_what_cannot_be_measured_in_a_command_that_keeps_running_is_said_at_its_end(
    commands: Commands,
) -> None:
    commands.limits = {"init_timeout": 0.1}
    outcome = commands.act("train", "2", world_size=1, keep_running=True)
    assert outcome.status == "invalid"
    assert str(outcome.reason).startswith("the command ran 2 ranks, but 1 was requested; ")


_LAUNCHER = """
import os, sys
from pathlib import Path
from scalescope.cli.streams import interruptible
from scalescope.errors import Interrupted
from tests.builders.commands import Commands
commands = Commands(Path(sys.argv[1]))
try:
    with interruptible():
        outcome = commands.act(sys.argv[2], keep_running=sys.argv[3] == "yes")
    sys.exit(128 + outcome.signum if outcome.signum else 0)
except Interrupted:
    sys.exit(130)
"""


def _started(commands: Commands, behaviour: str, keep: str) -> "subprocess.Popen[bytes]":
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _LAUNCHER, str(commands.path), behaviour, keep]
    return subprocess.Popen(command, cwd=root, preexec_fn=reset_signal_handlers)


def test_ctrl_c_is_passed_on_to_a_command_that_keeps_running(commands: Commands) -> None:
    launcher = _started(commands, "train_then_save_at_interrupt", "yes")
    try:
        _wait_for(commands.path / "trained")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(patience(20)) == 130
    finally:
        launcher.kill()
        launcher.wait()
    assert (commands.path / "saved").exists()


def test_a_command_that_keeps_running_and_ignores_signals_is_never_ended_by_us(commands: Commands) -> None:
    launcher = _started(commands, "ignore_signals", "yes")
    pid = int(_wait_for(commands.path / "pid"))
    try:
        launcher.send_signal(signal.SIGINT)
        _wait_for(commands.path / "interrupted")
        for number in (signal.SIGINT, signal.SIGTERM):
            launcher.send_signal(number)
        time.sleep(limit(1))
        assert launcher.poll() is None and _lives(pid)
        os.kill(pid, signal.SIGKILL)
        assert launcher.wait(patience(20)) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        launcher.kill()
        launcher.wait()


def test_a_command_dies_with_a_killed_launcher(commands: Commands) -> None:
    launcher = _started(commands, "ignore_sigterm", "no")
    try:
        pid = int(_wait_for(commands.path / "pid"))
    finally:
        launcher.kill()
        launcher.wait()
    deadline = time.monotonic() + patience(10)
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(pid)


def test_the_words_of_a_command_are_never_read_by_a_shell(commands: Commands) -> None:
    assert commands.act("train", "1", "';'", "touch", str(commands.path / "made")).status == "ok"
    assert not (commands.path / "made").exists()


_TORCHRUN = (
    f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node={{world_size}} --no-python"
)


def _under_torchrun(behaviour: str) -> str:
    return f"{_TORCHRUN} {sys.executable} -I {SCRIPT} {behaviour}"


def test_ranks_of_torchrun_are_measured(commands: Commands) -> None:
    outcome = commands.launch(command_trial(_under_torchrun("act_as_rank"), world_size=2))
    assert (outcome.status, outcome.reason, outcome.notes) == ("ok", None, [])
    assert [record.rank for record in outcome.records] == [0, 1]


def test_ranks_of_torchrun_that_ignore_sigterm_are_gone_with_the_launch(commands: Commands) -> None:
    def interrupt() -> None:
        if len(list(commands.path.glob("pid-*"))) == 2:
            raise Interrupted(signal.SIGINT)

    commands.watcher = Recorder(interrupt)
    trial = command_trial(_under_torchrun("hang_as_rank"), world_size=2, steps_per_epoch=100)
    with pytest.raises(Interrupted):
        commands.launch(trial)
    assert not any(_lives(int(file.read_text())) for file in commands.path.glob("pid-*"))


def test_a_crash_of_a_rank_of_torchrun_is_named_by_its_own_error(commands: Commands) -> None:
    outcome = commands.launch(command_trial(_under_torchrun("crash"), world_size=2))
    assert (outcome.status, outcome.bad_input) == ("failed", False)
    assert outcome.reason == "the command exited with code 1: ValueError: the data is gone"
