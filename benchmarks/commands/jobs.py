"""Training jobs of several kinds as one script: `python jobs.py JOB`; under torchrun with its ranks."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if ON_GPU else torch.device("cpu")
WIDTH, DEPTH, BATCH = (2048, 12, 256) if ON_GPU else (512, 3, 64)
PREPARING_S = 2e-5 if ON_GPU else 5e-5  # per sample


class Samples(Dataset[Any]):
    """Takes its time for each sample."""

    def __len__(self) -> int:
        return BATCH * 400

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        until = time.perf_counter() + PREPARING_S
        while time.perf_counter() < until:
            pass
        return torch.full((WIDTH,), number % 7 / 7.0), number % 10


def make_model(outputs: int = 10) -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, outputs)).to(DEVICE)


def wrapped(model: nn.Module) -> nn.Module:
    if not dist.is_initialized():
        return model
    return nn.parallel.DistributedDataParallel(model, device_ids=[DEVICE.index] if ON_GPU else None)


def batches() -> Any:
    samples = Samples()
    sampler = DistributedSampler(samples) if dist.is_initialized() else None
    while True:
        for inputs, targets in DataLoader(samples, BATCH, sampler=sampler, drop_last=True):
            yield inputs.to(DEVICE), targets.to(DEVICE)


def train(model: nn.Module, accumulate: int = 1) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for number, (inputs, targets) in enumerate(batches(), start=1):
        functional.cross_entropy(model(inputs), targets).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def plain() -> None:
    train(wrapped(make_model()))


def accumulation() -> None:
    train(wrapped(make_model()), accumulate=2)


def compiled() -> None:
    train(torch.compile(wrapped(make_model())))  # type: ignore[arg-type]


def fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    model = make_model()
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    train(model)


def gan() -> None:
    generator, critic = wrapped(make_model(WIDTH)), wrapped(make_model(1))
    of_generator = torch.optim.AdamW(generator.parameters(), lr=1e-4)
    of_critic = torch.optim.AdamW(critic.parameters(), lr=1e-4)
    for inputs, _ in batches():
        of_critic.zero_grad()
        made = generator(torch.randn_like(inputs))
        (critic(made.detach()) - critic(inputs)).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(made)).mean().backward()
        of_generator.step()


def hugging_face() -> None:
    from transformers import Trainer, TrainingArguments

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = make_model()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": functional.cross_entropy(self.body(inputs), labels)}

    class Named(Samples):
        def __getitem__(self, number: int) -> Any:
            inputs, label = super().__getitem__(number)
            return {"inputs": inputs, "labels": label}

    arguments = TrainingArguments(
        output_dir=os.environ.get("TMPDIR", "/tmp"),
        per_device_train_batch_size=BATCH,
        max_steps=10**7,
        report_to=[],
        save_strategy="no",
        use_cpu=not ON_GPU,
        disable_tqdm=True,
    )
    Trainer(model=Classifier(), args=arguments, train_dataset=Named()).train()


def lightning() -> None:
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = make_model()

        def training_step(self, batch: Any, number: int) -> Tensor:
            return functional.cross_entropy(self.body(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    trainer = pytorch_lightning.Trainer(
        max_steps=10**7,
        accelerator="gpu" if ON_GPU else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(Samples(), BATCH, drop_last=True))


JOBS: dict[str, Callable[[], None]] = {
    job.__name__: job for job in (plain, accumulation, compiled, fsdp2, gan, hugging_face, lightning)
}


def main() -> None:
    job = JOBS[sys.argv[1]]
    has_own_group = job in (hugging_face, lightning)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    if "RANK" in os.environ and not has_own_group:
        dist.init_process_group("nccl" if ON_GPU else "gloo")
    job()


if __name__ == "__main__":
    main()
