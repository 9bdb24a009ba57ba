"""A training script for one GPU with one thing wrong, or nothing: --case NAME [--fixed] [--seconds S].

It knows nothing of scalescope. With --seconds it times itself and prints milliseconds per step.
"""

import argparse
import gc
import math
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, width=768, layers=8, heads=12, words=8192, length=512, recompute=False, looks=False):
        super().__init__()
        self.recompute, self.looks = recompute, looks
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
            if self.looks and x.abs().max().item() > 1e4:
                raise ValueError("too large")
        return self.head(self.norm(x))


class Convolutions(nn.Module):
    def __init__(self, width=128, layers=12):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(layers))
        self.head = nn.Linear(width, 100)

    def forward(self, images):
        x = self.stem(images)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + functional.relu(norm(layer(x)))
        return self.head(x.mean((2, 3)))


class Chains(nn.Module):
    """Products with long chains of elementwise operations between them."""

    def __init__(self, width=2048):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            for _ in range(4):
                y = 0.5 * y * (1.0 + torch.tanh(0.79788 * (y + 0.044715 * y * y * y)))
            x = x + y
        return x


class Texts(Dataset):
    """Texts that are tokenized in Python when they are read."""

    def __init__(self, count=100_000, length=512, pause_s=0.0, work=1):
        self.count, self.length, self.pause_s, self.work = count, length, pause_s, work

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if self.pause_s:
            time.sleep(self.pause_s)
        tokens = []
        for _ in range(self.work):
            tokens = [(number * 31 + place * 17) % 8192 for place in range(self.length + 1)]
        return torch.tensor(tokens)


def texts(batch, workers, **more):
    loader = DataLoader(
        Texts(**more), batch_size=batch, num_workers=workers, pin_memory=True, drop_last=True,
        persistent_workers=workers > 0,
    )  # fmt: skip
    while True:
        for tokens in loader:
            tokens = tokens.to(DEVICE, non_blocking=True)
            yield tokens[:, :-1], tokens[:, 1:]


def fixed_texts(batch, length=512):
    tokens = torch.randint(0, 8192, (batch, length + 1), device=DEVICE)
    while True:
        yield tokens[:, :-1], tokens[:, 1:]


def varied_texts(batch, same):
    number = 0
    while True:
        number += 1
        length = 512 if same else 192 + 8 * (number * 7 % 40)
        tokens = torch.randint(0, 8192, (batch, length + 1), device=DEVICE)
        yield tokens[:, :-1], tokens[:, 1:]


def images(batch, side, pinned):
    pool = torch.randn(batch, 3, side, side)
    pool = pool.pin_memory() if pinned else pool
    labels = torch.randint(0, 100, (batch,), device=DEVICE)
    if pinned:  # the next batch travels while this one is computed on
        stream, ready = torch.cuda.Stream(), pool.to(DEVICE)
        while True:
            now = ready
            with torch.cuda.stream(stream):
                ready = pool.to(DEVICE, non_blocking=True)
            yield now, labels
            torch.cuda.current_stream().wait_stream(stream)
    while True:
        yield pool.to(DEVICE), labels


def fixed_images(batch, side, channels_last):
    pool = torch.randn(batch, 3, side, side, device=DEVICE)
    pool = pool.to(memory_format=torch.channels_last) if channels_last else pool
    labels = torch.randint(0, 100, (batch,), device=DEVICE)
    while True:
        yield pool, labels


def vectors(batch, width):
    x = torch.randn(batch, width, device=DEVICE)
    while True:
        yield x, x


class Job:
    """What a case trains, and what is wrong with it."""

    def __init__(self, case, fixed):
        self.case, self.fixed = case, fixed
        self.bf16, self.compile, self.optimizer = True, None, {"fused": True}
        self.loss = lambda out, goal: functional.cross_entropy(out.flatten(0, -2).float(), goal.flatten())
        getattr(self, case)()
        self.model = self.model.to(DEVICE)
        self.trained = torch.compile(self.model, **self.compile) if self.compile is not None else self.model
        self.update = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **self.optimizer)
        self.number = 0

    def healthy_gpt(self):
        self.model, self.batches, self.compile = Gpt(), fixed_texts(32), {}

    def healthy_convolutions(self):
        self.model = Convolutions().to(memory_format=torch.channels_last)
        self.batches, self.compile = fixed_images(256, 64, True), {}

    def healthy_products(self):
        layers = [layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
        self.model, self.batches = nn.Sequential(*layers), vectors(8192, 4096)
        self.loss = lambda out, goal: functional.mse_loss(out.float(), goal)

    def healthy_loader(self):
        self.model, self.batches, self.compile = Gpt(), texts(32, 6), {}

    def tokenizer(self):
        self.model, self.compile = Gpt(layers=4), {}
        self.batches = texts(32, 8 if self.fixed else 0, work=6)

    def slow_storage(self):
        self.model, self.compile = Gpt(), {}
        self.batches = texts(32, 12 if self.fixed else 1, pause_s=0.004)

    def checkpointing(self):
        self.model, self.batches = Gpt(layers=12, recompute=not self.fixed), fixed_texts(4)

    def checkpointing_large(self):
        self.model, self.batches = Gpt(recompute=not self.fixed), fixed_texts(48)

    def for_loop_optimizer(self):
        self.model, self.batches = Gpt(layers=12), fixed_texts(4)
        self.optimizer = {"fused": True} if self.fixed else {"foreach": False}

    def for_loop_optimizer_large(self):
        self.model, self.batches, self.compile = Gpt(layers=16), fixed_texts(16), {}
        self.optimizer = {"fused": True} if self.fixed else {"foreach": False}

    def hidden_item(self):
        self.model, self.batches = Gpt(layers=12, width=512, heads=8, looks=not self.fixed), fixed_texts(8)

    def single_precision(self):
        self.model, self.batches, self.bf16 = Gpt(), fixed_texts(16), self.fixed

    def tiny_layers(self):
        layers = [layer for _ in range(120) for layer in (nn.Linear(128, 128), nn.Tanh())]
        self.model, self.batches = nn.Sequential(*layers), vectors(64, 128)
        self.compile = {"mode": "reduce-overhead"} if self.fixed else None
        self.loss = lambda out, goal: functional.mse_loss(out.float(), goal)

    def pageable(self):
        self.model = Convolutions(width=64, layers=6).to(memory_format=torch.channels_last)
        self.batches = images(384, 160, self.fixed)

    def garbage(self):
        self.model, self.batches = Gpt(layers=12), fixed_texts(4)
        self.kept = [[number] for number in range(400_000)]

    def planes(self):
        self.model, self.batches = Convolutions(), fixed_images(256, 64, self.fixed)
        if self.fixed:
            self.model = self.model.to(memory_format=torch.channels_last)

    def empty_cache(self):
        self.model, self.batches = Gpt(), fixed_texts(16)

    def evaluation(self):
        self.model, self.batches, self.compile = Gpt(layers=4), fixed_texts(32), {}

    def saving(self):
        self.model, self.batches = Gpt(layers=12), fixed_texts(16)
        self.file = Path(tempfile.gettempdir(), "step-script.pt")

    def chains(self):
        self.model, self.batches = Chains(), vectors(16384, 2048)
        self.compile = {} if self.fixed else None
        self.loss = lambda out, goal: functional.mse_loss(out.float(), goal)

    def lengths(self):
        self.model, self.batches = Gpt(layers=4), varied_texts(16, self.fixed)
        self.compile = {"dynamic": False}

    def step(self):
        goal_in, goal = next(self.batches)
        self.update.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16):
            out = self.trained(goal_in)
            loss = functional.cross_entropy(out.float(), goal) if out.dim() == 2 and goal.dim() == 1 else (
                self.loss(out, goal)
            )  # fmt: skip
        loss.backward()
        self.update.step()
        self.number += 1
        if self.case == "garbage" and not self.fixed:
            gc.collect()
        if self.case == "empty_cache" and not self.fixed:
            torch.cuda.empty_cache()
        if self.case == "evaluation" and self.number % (1000 if self.fixed else 20) == 0:
            self.model.eval()
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                for _ in range(12):
                    self.model(next(self.batches)[0])
            self.model.train()
        if self.case == "saving" and self.number % (1000 if self.fixed else 20) == 0:
            torch.save(self.model.state_dict(), self.file)
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", required=True)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--seconds", type=float, default=math.inf)
    given = parser.parse_args()
    torch.manual_seed(0)
    job = Job(given.case, given.fixed)
    if math.isinf(given.seconds):
        while True:
            job.step()
    for _ in range(25):
        job.step()
    torch.cuda.synchronize()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < given.seconds or steps % 20:
        job.step()
        steps += 1
        if steps % 20 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    print(f"MS {1e3 * (time.perf_counter() - begin) / steps:.4f}", flush=True)
    os._exit(0)  # loader processes end with us


if __name__ == "__main__":
    main()
