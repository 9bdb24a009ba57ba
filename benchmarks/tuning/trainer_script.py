"""An ordinary training script: GPT-2 small from nothing, by the Trainer of transformers, on random tokens.

python benchmarks/tuning/trainer_script.py --output_dir build/trainer --max_steps 100
"""

from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


@dataclass
class ModelArguments:
    """What is trained on what."""

    layers: int = field(default=12, metadata={"help": "Blocks of the model."})
    width: int = field(default=768, metadata={"help": "Width of the model."})
    vocabulary: int = field(default=50_257, metadata={"help": "Tokens that the model knows."})
    block_size: int = field(default=512, metadata={"help": "Tokens of a sample."})
    samples: int = field(default=20_000, metadata={"help": "Samples of the data set."})


class RandomTokens(Dataset):
    """Random tokens, the same every time."""

    def __init__(self, samples: int, block_size: int, vocabulary: int) -> None:
        self.samples, self.block_size, self.vocabulary = samples, block_size, vocabulary

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(self.vocabulary, (self.block_size,), generator=generator)
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_arguments, training_arguments = parser.parse_args_into_dataclasses()
    set_seed(training_arguments.seed)
    config = GPT2Config(
        n_layer=model_arguments.layers,
        n_embd=model_arguments.width,
        n_head=max(1, model_arguments.width // 64),
        n_positions=model_arguments.block_size,
        vocab_size=model_arguments.vocabulary,
        bos_token_id=0,
        eos_token_id=0,
    )
    data = RandomTokens(model_arguments.samples, model_arguments.block_size, model_arguments.vocabulary)
    trainer = Trainer(model=GPT2LMHeadModel(config), args=training_arguments, train_dataset=data)
    trainer.train()


if __name__ == "__main__":
    main()
