"""Hugging Face's Trainer on GPT-2 (124 M parameters) with random tokens; nothing is downloaded."""

import argparse
import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--layers", type=int, default=12)
options = parser.parse_args()
on_gpu = torch.cuda.is_available()
model = GPT2LMHeadModel(GPT2Config(n_layer=options.layers, n_positions=options.length))


class Tokens(torch.utils.data.Dataset):
    """Random texts of equal length."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 50_000, (options.length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=options.batch_size,
    max_steps=100_000,
    save_steps=100,
    logging_steps=20,
    report_to=[],
    use_cpu=not on_gpu,
    disable_tqdm=True,
    ddp_backend="gloo" if "RANK" in os.environ and not on_gpu else None,
)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
