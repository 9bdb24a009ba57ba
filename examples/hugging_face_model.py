"""A Hugging Face model: scalescope train --workload examples/hugging_face_model.py:build --batch-size 16"""

import torch
from transformers import BertConfig, BertForSequenceClassification


def build():
    """Batches are mappings, so the model is called with their keys and finds its loss itself."""
    model = BertForSequenceClassification(BertConfig(num_labels=4))
    tokens = torch.randint(30_000, (2048, 128))
    data = [{"input_ids": tokens[n], "labels": n % 4} for n in range(len(tokens))]
    return model, data, lambda output, batch: output.loss
