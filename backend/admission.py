"""Who is served now and who waits: first come, first served, with a bound on each."""

import asyncio
import threading
from collections import deque

from backend.contract import QueueFull


class Ticket:
    """A place in the queue; `served` completes when it is this ticket's turn."""

    def __init__(self) -> None:
        self.served: asyncio.Future[None] | None = None


class Admission:
    """Counts running and waiting requests. Thread-safe; `wait` runs on the engine's event loop."""

    def __init__(self, limit: int, queue_size: int) -> None:
        self.limit = limit
        self._queue_size = queue_size
        self._lock = threading.Lock()
        self._running: set[Ticket] = set()
        self._waiting: deque[Ticket] = deque()
        self._recent_request_s = 10.0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def enter(self) -> Ticket:
        """A ticket that runs at once or waits its turn; raises QueueFull beyond the queue's size."""
        ticket = Ticket()
        with self._lock:
            if len(self._running) < self.limit and not self._waiting:
                self._running.add(ticket)
            elif len(self._waiting) < self._queue_size:
                self._waiting.append(ticket)
            else:
                retry_after_s = self._recent_request_s * (1 + len(self._waiting) / self.limit)
                raise QueueFull(
                    f"All {self.limit} places are taken and {len(self._waiting)} requests wait; "
                    f"try again in about {retry_after_s:.0f} seconds.",
                    retry_after_s,
                )
        return ticket

    def ahead(self, ticket: Ticket) -> int:
        """How many must finish before this ticket's turn; 0 while it is running (or has left)."""
        with self._lock:
            return self._waiting.index(ticket) + 1 if ticket in self._waiting else 0

    async def wait(self, ticket: Ticket) -> None:
        """Returns when it is the ticket's turn. If cancelled, the ticket still has to `leave`."""
        with self._lock:
            if ticket in self._running:
                return
            ticket.served = asyncio.get_running_loop().create_future()
        await ticket.served

    def leave(self, ticket: Ticket, request_s: float | None = None) -> None:
        """Gives the place up, whether running or waiting; `request_s` feeds the retry estimate."""
        with self._lock:
            if request_s is not None:
                self._recent_request_s = 0.7 * self._recent_request_s + 0.3 * request_s
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._running.discard(ticket)
            while self._waiting and len(self._running) < self.limit:
                following = self._waiting.popleft()
                self._running.add(following)
                if following.served is not None and not following.served.done():
                    following.served.get_loop().call_soon_threadsafe(_complete, following.served)


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
