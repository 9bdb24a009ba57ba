"""A training command without torch: it writes what our code inside its ranks would, and has its fault.

Run as `python -I acted_command.py BEHAVIOUR [RANKS]`: without -I, our real code would be loaded too.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

JOB: dict[str, Any] = json.loads(Path(os.environ["SCALESCOPE_ATTACH"]).read_text())
sys.path.insert(0, JOB["package_parent"])

from scalescope.results.files import write_atomically  # noqa: E402
from scalescope.results.ranks import Beat, Heartbeats, Phase, RankStage  # noqa: E402

STEPS = 8
DIRECTORY, FOLDER = Path(JOB["directory"]), Path(JOB["folder"])


def report(**facts: object) -> None:
    """The file of this process."""
    known = {"pid": os.getpid(), "torch": True, "steps": STEPS, "rank": None, "world_size": None}
    write_atomically(DIRECTORY / "processes" / f"{os.getpid()}.json", json.dumps({**known, **facts}))


def write(rank: int, state: str, ranks: int, **rest: object) -> None:
    """The file of a rank, and its heartbeat."""
    record = {"rank": rank, "host": "h", "device": "cpu", "placement": f"rank {rank}", "state": state}
    facts = {"pid": os.getpid(), "world_size": ranks, "counters": {"measured_steps": STEPS}}
    extra = DIRECTORY / f"extra-{rank}.json"
    file = Path(JOB["rank_files"][rank]) if rank < JOB["world_size"] else extra
    write_atomically(file, json.dumps({**record, **facts, **rest}))
    if rank < JOB["world_size"] == ranks:  # the slots are only those of the ranks that were asked for
        stage = RankStage.TEARDOWN if state == "done" else RankStage.WARMUP
        beats = Heartbeats(Path(JOB["heartbeat_file"]), JOB["world_size"])
        beats.write(rank, Beat(STEPS, STEPS, stage, Phase.INPUT, 0.0, STEPS))


def train(ranks: int) -> None:
    report()
    for state in ("running", "done"):
        for rank in range(ranks):
            write(rank, state, ranks)
        time.sleep(0.15)


def forever() -> None:
    while True:
        time.sleep(0.05)


def show_environment(ranks: int) -> None:
    (FOLDER / "environment.json").write_text(json.dumps({**os.environ, "argv": sys.argv, "cwd": os.getcwd()}))
    (FOLDER / "job.json").write_text(json.dumps(JOB))
    train(ranks)


def crash(ranks: int) -> None:
    report()
    try:
        raise ValueError("the data is gone")
    except ValueError:
        traceback.print_exc()
    print("RuntimeError is not what happened", flush=True)
    sys.exit(3)


def flood_and_crash(ranks: int) -> None:
    report()
    for _ in range(40):
        print("x" * (1 << 16), flush=True)
    crash(ranks)


def flood(ranks: int) -> None:
    report()
    while True:
        print("x" * (1 << 16), flush=True)


def be_killed(ranks: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def rank_fails(ranks: int) -> None:
    report()
    write(0, "failed", ranks, error={"message": "ValueError: mine", "optimizer_steps": 19})
    write(1, "failed", ranks, error={"message": "RuntimeError: Connection closed by peer"})
    sys.exit(7)


def rank_refuses(ranks: int) -> None:
    report()
    write(0, "failed", ranks, error={"message": "the steps have no period", "bad_input": True})
    forever()


def rank_refuses_the_others(ranks: int) -> None:
    report(rank=0)
    write(0, "failed", ranks, error={"message": "another number of ranks", "bad_input": True})
    sys.exit(1)


def lose_a_rank(ranks: int) -> None:
    report(rank=0)
    write(0, "done", ranks)


def start_one_rank_only(ranks: int) -> None:
    report(rank=0)
    write(0, "running", ranks)
    forever()


def leave_a_child(ranks: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    (FOLDER / "child").write_text(str(child.pid))
    train(ranks)


def train_and_stay(ranks: int) -> None:
    train(ranks)
    forever()


def ignore_sigterm(ranks: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report()
    (FOLDER / "pid").write_text(str(os.getpid()))
    forever()


def ignore_signals(ranks: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: (FOLDER / "interrupted").write_text("yes"))
    report()
    (FOLDER / "pid").write_text(str(os.getpid()))
    forever()


def wait_for_signal(ranks: int) -> None:
    report()
    (FOLDER / "pid").write_text(str(os.getpid()))
    forever()


def train_then_save_at_interrupt(ranks: int) -> None:
    try:
        train(ranks)
        (FOLDER / "trained").write_text("yes")
        forever()
    except KeyboardInterrupt:
        (FOLDER / "saved").touch()


def train_on(ranks: int) -> None:
    """Goes on for longer than a measured command may, to its own end."""
    train(ranks)
    time.sleep(1.0)
    (FOLDER / "saved").touch()
    sys.exit(5)


def act_as_rank(ranks: int) -> None:
    """What a rank does that a launcher started."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    report(rank=rank)
    for state in ("running", "done"):
        write(rank, state, ranks)


def hang_as_rank(ranks: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_atomically(FOLDER / f"pid-{os.environ['RANK']}", str(os.getpid()))
    forever()


def main() -> None:
    behaviour, ranks = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    if behaviour == "report":
        report(**json.loads(sys.argv[3]))
    elif behaviour != "nothing":
        globals()[behaviour](ranks)


if __name__ == "__main__":
    main()
