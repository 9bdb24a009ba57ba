"""Training jobs with a step of their own: clipping and a scheduler, and a GAN with two optimizers.

    scalescope train --workload examples/own_step.py:clipped --world-size 2
    scalescope scale --workload examples/own_step.py:gan --world-size 1,2

A step does forward, backward, the update and zero_grad, and returns the loss.
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import scalescope

_NOISE = 16


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def _samples() -> torch.utils.data.Dataset:
    inputs = torch.randn(2000, 64)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :10].argmax(dim=1))


def clipped() -> scalescope.Job:
    """A classifier whose gradients are clipped, with a learning rate that decays and no decay of biases."""
    model = _classifier()
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)

    def step(model, batch, optimizer):
        inputs, targets = batch
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    return scalescope.Job(model=model, data=_samples(), optimizer=optimizer, step=step)


def gan() -> scalescope.Job:
    """A generator and a discriminator, each with an optimizer; every step trains both."""
    models = {
        "generator": nn.Sequential(nn.Linear(_NOISE, 128), nn.ReLU(), nn.Linear(128, 64)),
        "discriminator": nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1)),
    }
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for name, model in models.items()
    }

    def step(models, batch, optimizers):
        real, _ = batch
        generator, discriminator = models["generator"], models["discriminator"]
        fake = generator(torch.randn(len(real), _NOISE, device=real.device))

        judged = discriminator(torch.cat([real, fake.detach()]))
        is_real = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)]).to(judged.device)
        binary_cross_entropy_with_logits(judged, is_real).backward()
        optimizers["discriminator"].step()

        judged = discriminator(fake)
        loss = binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
        loss.backward()
        optimizers["generator"].step()

        for optimizer in optimizers.values():
            optimizer.zero_grad()
        return loss

    return scalescope.Job(model=models, data=_samples(), optimizer=optimizers, step=step)
