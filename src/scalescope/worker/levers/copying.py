"""The `copying` lever is applied where batches are copied: see `worker/training/feeding.py`."""
