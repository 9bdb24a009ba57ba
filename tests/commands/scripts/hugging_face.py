"""Hugging Face's Trainer on a tiny GPT-2, with a tokenizer built here; nothing is downloaded."""

import os
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

words = ["[PAD]", "[UNK]", *(f"w{number}" for number in range(98))]
tokenizer = Tokenizer(
    models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
)
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=2))


class Texts(torch.utils.data.Dataset):
    """Samples of equal length."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        ids = fast(" ".join(f"w{(index + number) % 98}" for number in range(32)))["input_ids"]
        return {"input_ids": ids, "labels": ids}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    max_steps=100_000,
    save_steps=50,
    logging_steps=20,
    report_to=[],
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
    ddp_backend="gloo" if "RANK" in os.environ and not torch.cuda.is_available() else None,
)
Trainer(model=model, args=arguments, train_dataset=Texts()).train()
