"""One engine: measures a training loop step by step, whether it is ours or a script's."""
