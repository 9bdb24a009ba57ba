"""Trains and saves in one of the usual ways: saving.py WAY. After each save the script checks what it sees.

It begins with a folder that holds `ckpt.pt` of a step 7 and what an earlier training left: see `user_files`.
Every assertion that fails ends the script, so a measured launch has seen its own files as it wrote them.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 1_000_000
EVERY = 10  # steps between two saves
EARLIER = 7  # the step of the user's own checkpoint


def user_files(folder: Path) -> None:
    """What is there before: checkpoints, a folder of one, a link to the newest, logs."""
    torch.save({"step": EARLIER}, folder / "ckpt.pt")
    for step in (5, EARLIER):
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / "model.pt").write_bytes(b"precious")
    (folder / "latest").symlink_to(f"checkpoint-{EARLIER}")
    (folder / "log.txt").write_text("earlier\n")
    (folder / "metrics.json").write_text("[1]")


def plain(state: dict, step: int) -> None:
    torch.save(state, "ckpt.pt")
    assert torch.load("ckpt.pt")["step"] == step


def opened(state: dict, step: int) -> None:
    with open("ckpt.pt", "wb") as file:
        torch.save(state, file)
    assert os.path.getsize("ckpt.pt") > 1_000
    assert torch.load(Path("ckpt.pt").resolve())["step"] == step


def replaced(state: dict, step: int) -> None:
    torch.save(state, "ckpt.pt.tmp")
    os.replace("ckpt.pt.tmp", "ckpt.pt")
    assert not os.path.exists("ckpt.pt.tmp")
    assert torch.load("ckpt.pt")["step"] == step


def rotated(state: dict, step: int) -> None:
    """The new one is written, all others are removed."""
    folder = Path(f"checkpoint-{100 + step}")
    folder.mkdir()
    torch.save(state, folder / "model.pt")
    for old in Path().glob("checkpoint-*"):
        if old != folder:
            shutil.rmtree(old)
    assert [path.name for path in Path().glob("checkpoint-*")] == [folder.name]
    assert sorted(os.listdir(folder)) == ["model.pt"]


def folder_replaced(state: dict, step: int) -> None:
    """A folder that was there before is renamed and removed."""
    os.makedirs("new/deep", exist_ok=True)
    torch.save(state, "new/deep/model.pt")
    if os.path.isdir("checkpoint-7"):
        os.rename("checkpoint-7", "checkpoint-old")
    os.rename("new", "checkpoint-7")
    shutil.rmtree("checkpoint-old", ignore_errors=True)
    assert torch.load("latest/deep/model.pt")["step"] == step
    assert not os.path.exists("latest/model.pt")


def distributed_checkpoint(state: dict, step: int) -> None:
    import torch.distributed.checkpoint as dcp

    own = {"model": state["model"]}
    dcp.save(own, checkpoint_id="dcp")
    dcp.load(own, checkpoint_id="dcp")
    assert Path("dcp/.metadata").exists()


def safetensors_file(state: dict, step: int) -> None:
    from safetensors.torch import load_file, save_file

    save_file({**state["model"], "step": torch.tensor(step)}, "model.safetensors")
    assert int(load_file("model.safetensors")["step"]) == step


def linked(state: dict, step: int) -> None:
    """`latest` is a link that moves."""
    os.makedirs(f"run-{step}", exist_ok=True)
    torch.save(state, f"run-{step}/model.pt")
    os.symlink(f"run-{step}", "latest.tmp")
    os.replace("latest.tmp", "latest")
    assert torch.load("latest/model.pt")["step"] == step
    assert os.path.realpath("latest").endswith(f"run-{step}")


def appended(state: dict, step: int) -> None:
    with open("log.txt", "a") as file:
        file.write(f"{step}\n")
    logger = logging.getLogger("training")
    if not logger.handlers:
        logger.addHandler(logging.FileHandler("training.log"))
    logger.warning("step %d", step)
    lines = Path("log.txt").read_text().splitlines()
    assert lines[0] == "earlier" and lines[-1] == str(step)
    metrics = json.loads(Path("metrics.json").read_text())
    Path("metrics.json").write_text(json.dumps([*metrics, step]))
    assert json.loads(Path("metrics.json").read_text())[0] == 1


def by_child(state: dict, step: int) -> None:
    """A Python process saves."""
    code = "import pathlib, sys; pathlib.Path('child.txt').write_text(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(step)], check=True)
    assert Path("child.txt").read_text() == str(step)


def by_command(state: dict, step: int) -> None:
    """A program that is not Python copies."""
    torch.save(state, "ckpt.pt")
    assert os.system("cp ckpt.pt best.pt") == 0
    assert torch.load("best.pt")["step"] == step


def absolute(state: dict, step: int) -> None:
    """Whole paths, through a link, outside of the working folder."""
    folder = Path(os.environ.get("SAVING_ELSEWHERE", Path.cwd())) / "elsewhere"
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "model.pt")
    Path("ckpt.pt").unlink(missing_ok=True)
    shutil.copy(folder / "model.pt", Path.cwd() / "ckpt.pt")
    assert torch.load(Path.cwd() / "ckpt.pt")["step"] == step


def tensorboard(state: dict, step: int) -> None:
    from tensorboardX import SummaryWriter

    with SummaryWriter("tb") as writer:
        writer.add_scalar("loss", 1.0, step)
    assert os.listdir("tb")


WAYS: dict[str, Callable[[dict, int], None]] = {
    function.__name__: function
    for function in (
        plain,
        opened,
        replaced,
        rotated,
        folder_replaced,
        distributed_checkpoint,
        safetensors_file,
        linked,
        appended,
        by_child,
        by_command,
        absolute,
        tensorboard,
    )
}


def hugging_face() -> None:
    """Trainer keeps two checkpoints in a folder that has two already."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Look(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
            found = [path for path in Path().glob("checkpoint-*") if path.is_dir()]
            # Other ranks may look before the first one has removed the oldest.
            assert len(found) == 2 or not state.is_world_process_zero, found

    class Texts(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: int) -> dict[str, list[int]]:
            return {"input_ids": list(range(16)), "labels": list(range(16))}

    arguments = TrainingArguments(
        output_dir=".",
        per_device_train_batch_size=4,
        max_steps=STEPS,
        save_steps=EVERY,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=16, n_layer=1, n_head=1))
    Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[Look()]).train()


def lightning() -> None:
    """ModelCheckpoint keeps the two newest, and a link to the last."""
    import lightning as framework
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            loss = self.layer(batch[0]).square().mean()
            self.log("step_number", float(self.global_step))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    class Look(Callback):
        def on_train_batch_end(self, trainer, *rest):  # type: ignore[no-untyped-def]
            if trainer.global_step > 5 * EVERY:
                assert len(list(Path("lightning").glob("epoch*.ckpt"))) == 2

    devices = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    saving = ModelCheckpoint(
        "lightning",
        every_n_train_steps=EVERY,
        save_top_k=2,
        monitor="step_number",
        mode="max",
        save_last=True,
    )
    framework.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=-1,
        logger=False,
        callbacks=[saving, Look()],
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), DataLoader(TensorDataset(torch.randn(64_000, 16)), batch_size=8))


def loop(way: str) -> None:
    """A plain loop, with DDP on several ranks: rank 0 saves, the others look at what it saved."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    first = not dist.is_initialized() or dist.get_rank() == 0
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Every launch begins with the user's own checkpoint.
    if first and Path("ckpt.pt").exists():
        assert torch.load("ckpt.pt")["step"] == EARLIER, "this launch sees what another one saved"
    if dist.is_initialized():
        dist.barrier()
    for step in range(STEPS):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            state = {"step": step, "model": dict(model.state_dict())}
            if first or way == "distributed_checkpoint":
                WAYS[way](state, step)
            if dist.is_initialized():
                dist.barrier()
                if way in ("plain", "replaced"):
                    assert torch.load("ckpt.pt")["step"] == step
                dist.barrier()


if __name__ == "__main__":
    {"hugging_face": hugging_face, "lightning": lightning}.get(sys.argv[1], lambda: loop(sys.argv[1]))()
