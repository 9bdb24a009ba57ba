"""Whether a script can run on several ranks, by its text alone."""

from pathlib import Path

import pytest

from scalescope.analysis.commands import obstacle, script_of

LOOP = "loss.backward()\noptimizer.step()\n"
JOINS = (
    "torch.distributed.init_process_group('gloo')",
    "from torch.distributed.device_mesh import init_device_mesh",
    "from torch.nn.parallel import DistributedDataParallel as DDP",
    "rank = int(os.environ['LOCAL_RANK'])",
    "from accelerate import Accelerator",
    "import lightning.pytorch as pl",
    "from transformers import Trainer",
    "from trl import SFTTrainer",
    "import deepspeed",
)


def problem(folder: Path, text: str | bytes, *words: str) -> str | None:
    (folder / "train.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    return obstacle(words or ("python", "train.py"), folder)


@pytest.mark.parametrize("line", JOINS)
def test_a_script_that_joins_a_group_runs_under_torchrun(line: str, tmp_path: Path) -> None:
    assert problem(tmp_path, f"{line}\n{LOOP}") is None


def test_a_loop_without_a_group_is_several_independent_trainings(tmp_path: Path) -> None:
    text = problem(tmp_path, f"# init_process_group\nimport torch\n{LOOP}")
    assert text is not None
    assert text.startswith("train.py does not call torch.distributed.init_process_group")


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "setup.py").write_text("import torch.distributed as d\nd.init_process_group()\n")
    assert problem(tmp_path, f"from lib.setup import start\n{LOOP}") is None
    assert problem(tmp_path, f"from lib import setup\n{LOOP}") is None
    assert problem(tmp_path, f"import elsewhere\n{LOOP}") is not None


def test_ranks_that_the_script_starts_take_their_number_from_it(tmp_path: Path) -> None:
    text = problem(tmp_path, f"mp.spawn(main, nprocs=2)\ndist.init_process_group()\n{LOOP}")
    assert text == "train.py starts its ranks itself: write {world_size} where it takes the number of ranks"


@pytest.mark.parametrize(
    "text",
    ["framework.fit(model)\n", "def (:\n", b"\0", b"x = 1\n" * (1 << 18), "from big import x\n" + LOOP],
)
def test_nothing_is_said_of_what_is_not_known(text: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "big.py").write_bytes(b"x = 1\n" * (1 << 18))
    assert problem(tmp_path, text) is None


def test_nothing_is_said_of_a_script_that_is_gone(tmp_path: Path) -> None:
    assert obstacle(("python", "gone.py"), tmp_path) is None
    assert obstacle(("my-trainer", "--fast"), tmp_path) is None


def test_a_script_is_not_executed(tmp_path: Path) -> None:
    problem(tmp_path, f"open('ran', 'w')\n{LOOP}")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_the_script_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "train.py").write_text("")
    train = tmp_path / "train.py"
    commands = {
        ("python", "-u", "train.py", "other.py"): train,
        ("torchrun", "--nproc-per-node", "2", "train.py"): train,
        ("python", "-m", "torch.distributed.run", "train.py"): train,
        ("python", "-m", "pack.train"): tmp_path / "pack" / "train.py",
        ("python", "-m", "gone"): None,
        ("python", "script"): None,
    }
    assert {words: script_of(words, tmp_path) for words in commands} == commands
