"""A GPT trained by a loop of its own, as many people write it: `torchrun --nproc-per-node=2 gpt_script.py`.

Random tokens, AdamW with two parameter groups, clipping, a learning rate that falls, the loss printed every
ten steps with the loop's own clock. Nothing in it knows of scalescope. With LOG=file the mean times of every
ten steps are written there at the end.
"""

import argparse
import contextlib
import json
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 50304


class Block(nn.Module):
    """Attention and a feed-forward part, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.mlp(self.before_mlp(x))
        return result


class GPT(nn.Module):
    """A decoder of equal blocks."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return functional.cross_entropy(self.head(self.norm(x)).view(-1, VOCABULARY), targets.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    ranks = "RANK" in os.environ
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if ranks:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(1337)
    model: nn.Module = GPT(options.layers, options.width, options.heads, options.length).to(device)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))
    if ranks:
        model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    data = torch.randint(0, VOCABULARY, (1_000_000,))

    def batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - options.length - 1, (options.batch_size,)).tolist()
        inputs = torch.stack([data[start : start + options.length] for start in starts])
        targets = torch.stack([data[start + 1 : start + 1 + options.length] for start in starts])
        if on_gpu:
            return inputs.pin_memory().to(device, non_blocking=True), targets.pin_memory().to(
                device, non_blocking=True
            )
        return inputs, targets

    precision = torch.autocast(device.type, torch.bfloat16) if options.bf16 else contextlib.nullcontext()
    times_s, began = [], time.perf_counter()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / 10_000)))
        for micro in range(options.accumulation):
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = micro == options.accumulation - 1
            with precision:
                loss = model(*batch()) / options.accumulation
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss_now = loss.item() * options.accumulation
            now = time.perf_counter()
            times_s.append((now - began) / (10 if step else 1))
            began = now
            if os.environ.get("RANK", "0") == "0":
                print(f"step {step}: loss {loss_now:.4f}, {times_s[-1] * 1e3:.2f} ms per step", flush=True)
    if os.environ.get("LOG"):
        Path(os.environ["LOG"]).write_text(json.dumps(times_s), encoding="utf-8")


if __name__ == "__main__":
    main()
