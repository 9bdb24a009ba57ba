"""Operations counted from recorded shapes, against torch's own counter, compiled against eager.

    python benchmarks/step_flops.py OUT.jsonl [--only NAME]

Each model trains a few steps on one GPU under our profiler, eager and compiled. `FlopCounterMode` counts one
eager step of the same model. A GPT is held against 6 · parameters + 12 · layers · width · length per token,
too (Chowdhery et al., "PaLM", 2022, appendix B).
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, OPTIMIZER
from scalescope.results.traces.step_trace import read_steps
from scalescope.worker.trace.recorder import recorded_events, torch_profiler
from scalescope.worker.training.ranges import ranges_on

DEVICE = torch.device("cuda")
STEPS = 4
LAYERS, WIDTH, HEADS, LENGTH, WORDS = 6, 768, 12, 512, 50_304


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.inputs(self.first(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.outputs(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class GPT(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.again = again

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x).float().mean()


class Mean(nn.Module):
    """A model whose output is averaged to a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.model(x)
        return (output[0] if isinstance(output, tuple) else output).float().mean()


def tokens(count: int = 16) -> torch.Tensor:
    return torch.randint(WORDS, (count, LENGTH), device=DEVICE)


def images(count: int = 64) -> torch.Tensor:
    return torch.randn(count, 3, 224, 224, device=DEVICE)


def vectors(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def models() -> dict[str, object]:
    """What is counted: a model, its input and whether it trains in bf16."""
    import torchvision

    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    unet = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 4, stride=2, padding=1, groups=4),
        nn.ReLU(), nn.Conv2d(128, 128, 3, padding=2, dilation=2), nn.ConvTranspose2d(128, 3, 2, stride=2),
    )  # fmt: skip
    wide = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096))
    return {
        "gpt_bf16": lambda: (GPT(), tokens(), True),
        "gpt_fp32": lambda: (GPT(), tokens(4), False),
        "gpt_checkpointed": lambda: (GPT(again=True), tokens(), True),
        "resnet50": lambda: (Mean(torchvision.models.resnet50()), images(), True),
        "vit_b_16": lambda: (Mean(torchvision.models.vit_b_16()), images(32), True),
        "encoder": lambda: (Mean(nn.TransformerEncoder(layer, 4)), vectors(32, 256, 512), True),
        "convolutions": lambda: (Mean(unet), images(8), False),
        "products": lambda: (Mean(wide), vectors(4096, 4096), True),
        "lstm": lambda: (Mean(nn.LSTM(512, 512, 2)), vectors(64, 32, 512), False),
    }  # fmt: skip


def counted(model: nn.Module, call: object, x: torch.Tensor, short: bool) -> dict[str, float]:
    """The counters of recorded steps."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    range_of = ranges_on(DEVICE)

    def step() -> None:
        with range_of(FORWARD), torch.autocast("cuda", torch.bfloat16, enabled=short):
            loss = call(x)
        with range_of(BACKWARD):
            loss.backward()
        with range_of(OPTIMIZER):
            optimizer.step()
        optimizer.zero_grad()
        with range_of(CLEAR):
            pass

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    recorder = torch_profiler(DEVICE, record_shapes=True)
    with recorder:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    return read_steps(recorded_events(recorder)).counters


def usual(x: torch.Tensor, model: GPT) -> float:
    """6 N + 12 L d T per token, without the tables that are looked up."""
    looked_up = model.words.weight.numel() + model.places.weight.numel()
    parameters = sum(parameter.numel() for parameter in model.parameters()) - looked_up
    return x.numel() * (6.0 * parameters + 12.0 * LAYERS * WIDTH * LENGTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    for name, make in models().items():
        if given.only not in name:
            continue
        model, x, short = make()
        model.to(DEVICE)
        with FlopCounterMode(display=False) as counter, torch.autocast("cuda", torch.bfloat16, enabled=short):
            model(x).backward()
        row = {"case": name, "torch": counter.get_total_flops()}
        if isinstance(model, GPT):
            row["formula"] = usual(x, model)
        for kind in ("eager", "compiled"):
            call = model if kind == "eager" else torch.compile(model)
            counters = counted(model, call, x, short)
            row[kind] = {
                name: value for name, value in counters.items() if "flops" in name or "linked" in name
            }
        with given.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
