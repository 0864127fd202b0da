"""Which runs have been asked to stop."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

# Ids stopped before their run began; a run that never begins leaves its id behind.
_KEEP_EARLY = 256


class Stops:
    """Stop requests by run id. Used from Gradio's event loop only."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Event] = {}
        self._early: OrderedDict[str, None] = OrderedDict()

    @contextmanager
    def watch(self, run_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when `run_id` is to stop, also if that was asked before now."""
        event = self._running[run_id] = asyncio.Event()
        if run_id in self._early:
            del self._early[run_id]
            event.set()
        try:
            yield event
        finally:
            if self._running.get(run_id) is event:
                del self._running[run_id]

    def stop(self, run_id: str) -> None:
        if not run_id:
            return
        if event := self._running.get(run_id):
            event.set()
            return
        self._early[run_id] = None
        while len(self._early) > _KEEP_EARLY:
            self._early.popitem(last=False)
