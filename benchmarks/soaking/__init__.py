"""Parts of benchmarks/soak.py: random sweeps, victims among their processes, and checks of what is left."""
