"""The `input` lever is applied where batches are loaded: see `worker/training/feeding.py`."""
