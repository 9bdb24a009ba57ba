"""The `copying` lever acts where batches are copied: see `worker/training/feeding.py`."""
