"""What benchmarks/prediction.py measures, predicts and scores."""
