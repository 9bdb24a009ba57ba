"""The `input` lever acts where batches are made: see `worker/training/feeding.py`."""
