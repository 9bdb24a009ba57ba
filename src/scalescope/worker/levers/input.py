"""The `input` lever acts where batches are made: see `worker/feeding.py`."""
