"""A timm model: scalescope train --workload examples/timm_model.py:build --batch-size 64"""

import timm
import torch


def build():
    """A vision transformer on made-up images, eight of which the data set repeats."""
    model = timm.create_model("vit_small_patch16_224", num_classes=100)
    images = torch.randn(8, 3, 224, 224)
    data = [(images[n % 8], n % 100) for n in range(2048)]
    return model, data, torch.nn.functional.cross_entropy
