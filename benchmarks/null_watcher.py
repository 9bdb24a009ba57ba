"""A watcher for benchmarks that run campaigns without showing their progress."""


class NullWatcher:
    """Accepts every call of a watcher and does nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *arguments, **named: None
