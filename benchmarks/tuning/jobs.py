"""Ten training jobs as somebody's own workloads: jobs that `tune` was not built with.

    scalescope tune --workload benchmarks/tuning/jobs.py:vit --batch-size 128

Each function returns what a workload returns. vit and resnet need torchvision, bert and lora transformers.
With TUNE_SCALE=small all sizes are small, for a try on the CPU.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import scalescope

SMALL = os.environ.get("TUNE_SCALE") == "small"
BATCH = {
    "vit": 128,
    "bert": 64,
    "resnet": 128,
    "unet": 16,
    "lstm": 64,
    "dlrm": 4096,
    "diffusion": 64,
    "gan": 128,
    "speech": 16,
    "lora": 16,
}
if SMALL:
    BATCH = dict.fromkeys(BATCH, 4)
HAS_IMAGES = ("vit", "resnet", "unet", "diffusion", "gan")  # for which channels_last is worth a try

Part = tuple[nn.Module, Any, Any, torch.optim.Optimizer]


def _size(full: int, small: int) -> int:
    return small if SMALL else full


def _adamw(model: nn.Module, lr: float = 1e-4) -> torch.optim.Optimizer:
    """What an ordinary script has."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=lr)


# Data


class Images(Dataset[Any]):
    """Images in memory as bytes; read as a random crop, flipped or not, in normalised floats."""

    def __init__(
        self, length: int, stored: int, stored_size: int, size: int, *, classes: int | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        shape = (stored, 3, stored_size, stored_size)
        self._images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        self._length, self._size, self._classes = length, size, classes
        self._mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        self._deviation = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        image = self._images[index % len(self._images)]
        room = image.shape[-1] - self._size
        if room:
            top, left = torch.randint(0, room + 1, (2,)).tolist()
            image = image[:, top : top + self._size, left : left + self._size]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        normalised = (image.float() / 255.0 - self._mean) / self._deviation
        return normalised if self._classes is None else (normalised, index % self._classes)


class Repeated(Dataset[Any]):
    """A few samples as a data set of any length."""

    def __init__(self, samples: Dataset[Any], stored: int, length: int) -> None:
        self._samples, self._stored, self._length = samples, stored, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % self._stored]


class Named(Dataset[Any]):
    """Tensors by name, sample by sample, as models of transformers take them."""

    def __init__(self, **tensors: Tensor) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(next(iter(self._tensors.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor[index] for name, tensor in self._tensors.items()}


class Speech(Dataset[Any]):
    """Sound in memory; read as a log-mel spectrogram, with the letters that were said."""

    def __init__(self, length: int, stored: int, frames: int, letters: int) -> None:
        generator = torch.Generator().manual_seed(1)
        samples = (frames - 1) * _HOP
        waves = torch.randn(stored, samples, generator=generator) * 3000.0
        self._waves = waves.to(torch.int16)
        self._letters = torch.randint(1, _ALPHABET, (stored, letters), generator=generator)
        self._length = length
        self._window = torch.hann_window(400)
        self._mel = _mel_bands(80, 512, 16_000)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index %= len(self._waves)
        wave = self._waves[index].float() / 32_768.0
        spectrum = torch.stft(wave, 512, _HOP, 400, self._window, return_complex=True)
        mel = self._mel @ spectrum.abs().square()
        features = (mel + 1e-6).log().T
        return (features - features.mean()) / features.std(), self._letters[index]


_HOP = 160  # sound samples between frames
_ALPHABET = 32  # with the blank


def _mel_bands(bands: int, window: int, rate: int) -> Tensor:
    """Triangles over the frequencies of a spectrum, evenly spaced in mel."""
    highest = 2595.0 * torch.log10(torch.tensor(1.0 + rate / 2 / 700.0))
    edges = 700.0 * (10.0 ** (torch.linspace(0.0, 1.0, bands + 2) * highest / 2595.0) - 1.0)
    frequencies = torch.linspace(0.0, rate / 2, window // 2 + 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0.0)


def _photos() -> Images:
    return Images(_size(10_240, 64), _size(512, 8), 256, 224, classes=_size(1000, 10))


# Images: ViT-B/16 and ResNet-50


def vit() -> Part:
    """ViT-B/16 on 224 x 224 images."""
    from torchvision.models import vit_b_16

    model = vit_b_16(weights=None)
    return model, _photos(), functional.cross_entropy, _adamw(model)


def resnet() -> Part:
    """ResNet-50 on 224 x 224 images."""
    from torchvision.models import resnet50

    model = resnet50(weights=None)
    return model, _photos(), functional.cross_entropy, _adamw(model)


# Text: BERT, an LSTM, and a GPT-2 with adapters


def own_loss(outputs: Any, batch: Any) -> Tensor:
    """The loss that a model of transformers computes itself."""
    loss: Tensor = outputs.loss
    return loss


def bert() -> Part:
    """BERT base classifies 128 tokens, some of them padding."""
    from transformers import BertConfig, BertForSequenceClassification

    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    model = BertForSequenceClassification(BertConfig(num_labels=4, **(small if SMALL else {})))
    count, length = _size(16_384, 64), 128
    lengths = torch.randint(length // 2, length + 1, (count, 1))
    mask = (torch.arange(length) < lengths).long()
    ids = torch.randint(1000, 30_000, (count, length)) * mask
    data = Named(input_ids=ids, attention_mask=mask, labels=torch.randint(0, 4, (count,)))
    return model, data, own_loss, _adamw(model, 5e-5)


class LstmLanguageModel(nn.Module):
    """An embedding, two layers of LSTM, and a head."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(ids))
        scores: Tensor = self.head(hidden)
        return scores


def next_token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def lstm() -> Part:
    """A language model of two layers of LSTM, 1,024 wide, on 64 tokens."""
    vocabulary = _size(20_000, 100)
    model = LstmLanguageModel(vocabulary, _size(1024, 32))
    ids = torch.randint(0, vocabulary, (_size(20_480, 64), 65))
    data = TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return model, data, next_token_loss, _adamw(model, 1e-3)


class Adapted(nn.Module):
    """A frozen layer with a trained product of low rank beside it."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.dropout = nn.Dropout(0.05)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        self.scale = 2.0
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        added: Tensor = self.base(hidden) + self.scale * self.up(self.down(self.dropout(hidden)))
        return added


def lora() -> Part:
    """GPT-2 small with a frozen base and adapters at the projections of its attention, on 256 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 500}
    config = GPT2Config(use_cache=False, **(small if SMALL else {}))
    model = GPT2LMHeadModel(config)
    model.requires_grad_(False)
    for block in model.transformer.h:
        for name in ("c_attn", "c_proj"):
            base = getattr(block.attn, name)
            setattr(block.attn, name, Adapted(base, *base.weight.shape))
    ids = torch.randint(0, config.vocab_size, (_size(4096, 64), _size(256, 32)))
    return model, Named(input_ids=ids, labels=ids), own_loss, _adamw(model, 2e-4)


# Dense images: segmentation and noise


def _two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for channels in (inputs, outputs):
        parts += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*parts)


class Unet(nn.Module):
    """Down by halves, up again, with what was seen on the way down beside it."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.first = _two_convolutions(3, width)
        self.down = nn.ModuleList(_two_convolutions(w, 2 * w) for w in widths[:-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(_two_convolutions(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        seen = [self.first(images)]
        for block in self.down:
            seen.append(block(functional.max_pool2d(seen[-1], 2)))
        hidden = seen.pop()
        for widen, block in zip(self.widen, self.up, strict=True):
            hidden = block(torch.cat([seen.pop(), widen(hidden)], dim=1))
        classes: Tensor = self.head(hidden)
        return classes


def unet() -> Part:
    """A U-Net of 31 million parameters gives each pixel of 256 x 256 a class."""
    side, stored = _size(256, 32), _size(128, 8)
    model = Unet(_size(64, 8), _size(4, 2), 8)
    samples = TensorDataset(torch.randn(stored, 3, side, side), torch.randint(0, 8, (stored, side, side)))
    return model, Repeated(samples, stored, _size(4096, 64)), functional.cross_entropy, _adamw(model)


class Residual(nn.Module):
    """Two convolutions that know how much noise there is, beside the input."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.dropout = nn.Dropout(0.1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.beside = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, hidden: Tensor, time: Tensor) -> Tensor:
        added = self.first(functional.silu(self.norms[0](hidden)))
        added = added + self.time(time)[:, :, None, None]
        added = self.second(self.dropout(functional.silu(self.norms[1](added))))
        total: Tensor = self.beside(hidden) + added
        return total


class PixelAttention(nn.Module):
    """Every pixel looks at all others."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, channels, high, wide = hidden.shape
        parts = self.qkv(self.norm(hidden)).reshape(batch, 3, self.heads, channels // self.heads, high * wide)
        query, key, value = parts.transpose(-1, -2).unbind(1)
        seen = functional.scaled_dot_product_attention(query, key, value)
        total: Tensor = hidden + self.out(seen.transpose(-1, -2).reshape(batch, channels, high, wide))
        return total


class Denoiser(nn.Module):
    """Predicts the noise in an image: residual blocks at four resolutions, attention at the second."""

    def __init__(self, width: int, factors: Sequence[int]) -> None:
        super().__init__()
        time_width = 4 * width
        self.width = width
        self.time = nn.Sequential(
            nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width), nn.SiLU()
        )
        self.first = nn.Conv2d(3, width, 3, padding=1)
        widths, now = [width], width
        self.down = nn.ModuleList()
        for level, factor in enumerate(factors):
            for _ in range(2):
                self.down.append(self._stage(now, factor * width, time_width, level))
                now = factor * width
                widths.append(now)
            if level + 1 < len(factors):
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                widths.append(now)
        self.middle = nn.ModuleList([self._stage(now, now, time_width, 1)])
        self.up = nn.ModuleList()
        for level, factor in reversed(list(enumerate(factors))):
            for _ in range(3):
                self.up.append(self._stage(now + widths.pop(), factor * width, time_width, level))
                now = factor * width
            if level:
                upwards = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(now, now, 3, padding=1))
                self.up.append(upwards)
        self.last = nn.Sequential(nn.GroupNorm(8, now), nn.SiLU(), nn.Conv2d(now, 3, 3, padding=1))

    @staticmethod
    def _stage(inputs: int, outputs: int, time_width: int, level: int) -> nn.ModuleList:
        attention = PixelAttention(outputs) if level == 1 else nn.Identity()
        return nn.ModuleList([Residual(inputs, outputs, time_width), attention])

    def forward(self, images: Tensor, steps: Tensor) -> Tensor:
        half = self.width // 2
        exponents = torch.arange(half, device=images.device) / half
        angles = steps[:, None] * torch.exp(-9.21 * exponents)
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        hidden = self.first(images)
        seen = [hidden]
        for part in self.down:
            hidden = part[1](part[0](hidden, time)) if isinstance(part, nn.ModuleList) else part(hidden)
            seen.append(hidden)
        residual, attention = self.middle[0]
        hidden = attention(residual(hidden, time))
        for part in self.up:
            if isinstance(part, nn.ModuleList):
                hidden = part[1](part[0](torch.cat([hidden, seen.pop()], dim=1), time))
            else:
                hidden = part(hidden)
        noise: Tensor = self.last(hidden)
        return noise


class NoisePrediction(nn.Module):
    """Adds noise to images, and says by how much the prediction of it is wrong."""

    def __init__(self, denoiser: nn.Module) -> None:
        super().__init__()
        self.denoiser = denoiser
        kept = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, 1000), dim=0)
        self.register_buffer("kept", kept)

    def forward(self, images: Tensor) -> Tensor:
        steps = torch.randint(0, 1000, (len(images),), device=images.device)
        noise = torch.randn_like(images)
        kept = self.kept[steps][:, None, None, None]
        error: Tensor = self.denoiser(kept.sqrt() * images + (1.0 - kept).sqrt() * noise, steps) - noise
        return error


def squared_error(errors: Tensor, labels: Tensor) -> Tensor:
    return errors.float().square().mean()


def diffusion() -> Part:
    """A U-Net with attention predicts the noise in images of 32 x 32."""
    model = NoisePrediction(Denoiser(_size(128, 16), (1, 2, 2, 2)[: _size(4, 2)]))
    data = Images(_size(20_480, 64), _size(4096, 8), 32, 32, classes=10)
    return model, data, squared_error, _adamw(model, 2e-4)


# Clicks: embeddings and multilayer perceptrons


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Clicks(nn.Module):
    """Tables of embeddings and a perceptron of numbers, compared in pairs, and a perceptron of all that."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _perceptron([13, 512, 256, width])
        pairs = (tables + 1) * tables // 2
        self.top = _perceptron([pairs + width, 1024, 1024, 512, 1])
        first, second = torch.triu_indices(tables + 1, tables + 1, offset=1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        looked_up = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([dense, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
        scores: Tensor = self.top(torch.cat([dense, products], dim=1)).squeeze(1)
        return scores


def dlrm() -> Part:
    """Whether somebody clicks: 20 tables of 100,000 embeddings, 64 wide."""
    tables, rows, count = 20, _size(100_000, 100), _size(1_048_576, 256)
    model = Clicks(tables, rows, 64)
    data = TensorDataset(
        torch.randn(count, 13),
        torch.randint(0, rows, (count, tables)),
        torch.randint(0, 2, (count,)).float(),
    )
    return model, data, functional.binary_cross_entropy_with_logits, _adamw(model, 1e-3)


# Two models against each other


def _generator(width: int, latent: int) -> nn.Sequential:
    parts: list[nn.Module] = [
        nn.Unflatten(1, (latent, 1, 1)),
        nn.ConvTranspose2d(latent, 8 * width, 4, bias=False),
        nn.BatchNorm2d(8 * width),
        nn.ReLU(inplace=True),
    ]
    for factor in (8, 4, 2):
        parts += [
            nn.ConvTranspose2d(factor * width, factor * width // 2, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(factor * width // 2),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*parts, nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1), nn.Tanh())


def _discriminator(width: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2, inplace=True)]
    for factor in (1, 2, 4):
        parts += [
            nn.Conv2d(factor * width, 2 * factor * width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * factor * width),
            nn.LeakyReLU(0.2, inplace=True),
        ]
    return nn.Sequential(*parts, nn.Conv2d(8 * width, 1, 4), nn.Flatten(0))


_LATENT = 128


def gan_step(models: Any, batch: Tensor, optimizers: Any) -> Tensor:
    """The discriminator learns from real and made images, then the generator from its answer."""
    generator, discriminator = models["generator"], models["discriminator"]
    made = generator(torch.randn(len(batch), _LATENT, device=batch.device))
    real_error = functional.relu(1.0 - discriminator(batch)).mean()
    made_error = functional.relu(1.0 + discriminator(made.detach())).mean()
    (real_error + made_error).backward()
    optimizers["discriminator"].step()
    loss: Tensor = -discriminator(made).mean()
    loss.backward()
    optimizers["generator"].step()
    for optimizer in optimizers.values():
        optimizer.zero_grad()
    return loss


def gan() -> scalescope.Job:
    """A convolutional GAN of images of 64 x 64: two models, two optimizers, a step of its own."""
    width = _size(128, 4)
    models = {"generator": _generator(width, _LATENT), "discriminator": _discriminator(width)}
    optimizers = {name: _adamw(model, 2e-4) for name, model in models.items()}
    data = Images(_size(20_480, 64), _size(2048, 8), 64, 64)
    return scalescope.Job(model=models, data=data, optimizer=optimizers, step=gan_step)


# Speech


class Recogniser(nn.Module):
    """Convolutions that keep every fourth frame, and a transformer encoder."""

    def __init__(self, frames: int, channels: int, width: int, layers: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.entry = nn.Linear(channels * 20, width)
        self.positions = nn.Parameter(torch.randn(1, frames // 4, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, _ALPHABET)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.convolutions(features[:, None])
        hidden = self.entry(hidden.transpose(1, 2).flatten(2)) + self.positions
        scores: Tensor = self.head(self.encoder(hidden))
        return scores


def letters_loss(scores: Tensor, letters: Tensor) -> Tensor:
    """Over all ways to spread the letters over the frames; all sounds are equally long."""
    log_chances = scores.float().log_softmax(-1).transpose(0, 1)
    frames, batch, _ = log_chances.shape
    lengths = torch.full((batch,), frames), torch.full((batch,), letters.shape[1])
    return functional.ctc_loss(log_chances, letters, *lengths, zero_infinity=True)


def speech() -> Part:
    """Letters from ten seconds of sound, whose log-mel spectrogram is computed when it is read."""
    frames = _size(1000, 100)
    model = Recogniser(frames, _size(256, 8), _size(512, 64), _size(12, 2))
    return model, Speech(_size(4096, 64), _size(256, 8), frames, _size(60, 8)), letters_loss, _adamw(model)
