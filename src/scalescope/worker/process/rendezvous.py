"""Rendezvous: the store that connects the ranks of torchrun or srun: torch's own, or a file on one host."""

import datetime
import json
import os
import socket
from typing import Any

from scalescope import clocks
from scalescope.errors import CannotRun, TimedOut
from scalescope.results.ranks import STORE_ADDRESS_VARIABLE, STORE_FILE_VARIABLE

_STORE_LIMIT = datetime.timedelta(minutes=5)  # for what ranks of one trial read from each other
_LONGEST_SLEEP_S = 0.25
_CONNECT_S = 2.0  # limit of a single attempt
_TELL_S = 5.0  # for rank 0 to say which ranks are missing
_MOST_NAMED = 8
_BACKLOG = 2048


class Rendezvous:
    """All ranks of a run, through the store that they share."""

    def __init__(self, limit_s: float = 300.0, *, of_watch: bool = False) -> None:
        """Connect within the limit; `of_watch` is a second connection, which does not wait for the first."""
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._limit_s = limit_s
        self._deadline = clocks.monotonic() + limit_s
        path = os.environ.get(STORE_FILE_VARIABLE)
        if path is None:
            self.store = self._tcp_store(serves=self._is_server and not of_watch)
            self._deadline = clocks.monotonic() + limit_s  # from now on: loading torch may take as long
        else:
            import torch.distributed as dist

            # A store that knows the number of ranks removes the file once that many objects are gone.
            self.store = dist.FileStore(path, -1 if of_watch else self.world_size)

    @property
    def _is_server(self) -> bool:
        return self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def _tcp_store(self, *, serves: bool) -> Any:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        listening = _listening_socket(os.environ.get(STORE_ADDRESS_VARIABLE), port) if serves else None
        if listening is None:
            self._wait_for_server(host, port)
        import torch.distributed as dist  # only now: a wrong port needs no torch

        try:
            store: Any = dist.TCPStore(
                host,
                port,
                self.world_size,
                serves,
                datetime.timedelta(seconds=self._limit_s),
                wait_for_workers=False,
                master_listen_fd=None if listening is None else listening.detach(),
            )
        except RuntimeError:
            raise TimedOut(
                f"what listens at {host}:{port} is not rank 0 of this run; check MASTER_ADDR and MASTER_PORT"
            ) from None
        store.set_timeout(_STORE_LIMIT)
        if "TORCHELASTIC_RUN_ID" in os.environ:  # restarted ranks may find the store of those before
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"/worker/attempt_{attempt}", store)
        return store

    def _wait_for_server(self, host: str, port: int) -> None:
        """Wait until rank 0 listens; torch's own attempts print their stacks."""
        while True:
            try:
                socket.create_connection((host, port), timeout=_CONNECT_S).close()
                return
            except OSError as error:
                if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
                    raise CannotRun(f"MASTER_ADDR {host}: no such host") from None
                if clocks.monotonic() > self._deadline:
                    raise TimedOut(
                        f"rank 0 did not listen at {host}:{port} within {self._limit_s:g} s "
                        f"({error.strerror or error}); check that it runs, MASTER_ADDR and MASTER_PORT"
                    ) from None
            clocks.sleep(_LONGEST_SLEEP_S)

    def meet(self) -> list[int]:
        """Wait for all ranks; returns those that did not come within the limit, the same on every rank."""
        self.publish(f"joined/{self.rank}", b"1")
        if self.rank == 0:
            missing = self._missing_ranks()
            self.publish("missing", json.dumps(missing))
            return missing
        try:
            named_by_first: list[int] = json.loads(self.wait("missing", self._limit_s + _TELL_S))
        except TimeoutError:
            return [0]
        return named_by_first

    def missing_text(self, missing: list[int]) -> str:
        """Which ranks did not join, and what would help."""
        named = ", ".join(map(str, missing[:_MOST_NAMED]))
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        return (
            f"rank{'s' if len(missing) > 1 else ''} {named}{more} of {self.world_size} did not join within "
            f"{self._limit_s:g} s; start all ranks, or raise --init-timeout"
        )

    def _missing_ranks(self) -> list[int]:
        """The ranks that have not joined when the time is over; none as soon as all have."""
        names = [f"scalescope/joined/{rank}" for rank in range(self.world_size)]
        sleep_s = 0.005
        while not self.store.check(names):
            if clocks.monotonic() > self._deadline:
                return [rank for rank, name in enumerate(names) if not self.store.check([name])]
            clocks.sleep(sleep_s)
            sleep_s = min(_LONGEST_SLEEP_S, 1.3 * sleep_s)
        return []

    def publish(self, key: str, value: bytes | str) -> None:
        """Store a value under a key, for all ranks."""
        self.store.set(f"scalescope/{key}", value)

    def get(self, key: str) -> bytes | None:
        """The value under a key; None if it has not been published yet."""
        name = f"scalescope/{key}"
        return bytes(self.store.get(name)) if self.store.check([name]) else None

    def wait(self, key: str, limit_s: float = float("inf")) -> bytes:
        """Wait until a key is published, however long rank 0 takes between two trials.

        This polls, because the store's own wait prints warnings after a minute.
        """
        deadline, sleep_s = clocks.monotonic() + limit_s, 0.005
        while (value := self.get(key)) is None:
            if clocks.monotonic() > deadline:
                raise TimeoutError(f"{key} was not published within {limit_s:g} s")
            clocks.sleep(sleep_s)
            sleep_s = min(_LONGEST_SLEEP_S, 1.3 * sleep_s)
        return value

    def prefix(self, name: str) -> Any:
        """A part of the store for one trial: a second group must not find the keys of the first."""
        import torch.distributed as dist

        return dist.PrefixStore(f"scalescope/{name}", self.store)


def _listening_socket(address: str | None, port: int) -> socket.socket:
    """Where rank 0 listens: at `address`, or at all of this host's where ranks of others must reach it."""
    try:
        if address is not None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address, port), family=family, backlog=_BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
        return socket.create_server(("", port), backlog=_BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise CannotRun(f"MASTER_PORT {port} cannot be used on this host ({why}); choose another") from None
