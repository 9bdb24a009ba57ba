"""The `copying` lever acts where batches are copied: see `worker/feeding.py`."""
