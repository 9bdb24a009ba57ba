"""What benchmarks share that run whole studies: somebody to tell things to who says nothing."""


class Silence:
    """A watcher that says nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: None
