"""One accepted request: made on the engine's event loop, iterated on its caller's."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable

from backend.contract import AudioChunk, EngineUnavailable, RunReport, SpeechError, SpeechRequest

# How long closing a run waits for the stages to let go of it; vLLM-Omni bounds its own abort at 2 s.
CLOSE_TIMEOUT_S = 5.0


class EngineRun:
    """Implements `SpeechRun`. The engine pushes from its loop; the caller pulls on its own."""

    def __init__(
        self,
        request: SpeechRequest,
        seed: int,
        engine_loop: asyncio.AbstractEventLoop,
        ahead: Callable[[], int] = lambda: 0,
    ) -> None:
        self.request = request
        self.request_id = f"speech-{uuid.uuid4().hex[:12]}"
        self.seed = seed
        self.report: RunReport | None = None
        self._ahead = ahead
        self._engine_loop = engine_loop
        self._caller_loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[AudioChunk | SpeechError | None] = asyncio.Queue()
        self._ended = False
        # What follows belongs to the engine's loop.
        self.task: asyncio.Task[None] | None = None
        self._cancelled = False

    @property
    def ahead(self) -> int:
        return self._ahead()

    def serve_in_this_task(self) -> None:
        """The engine's side begins; raises CancelledError if the run was closed before it could."""
        self.task = asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError

    def cancel(self) -> None:
        """Ends the engine's side, begun or not; its report and end marker follow. Any thread."""
        # A loop that is closed has ended all its runs.
        with contextlib.suppress(RuntimeError):
            self._engine_loop.call_soon_threadsafe(self._cancel_once)

    def _cancel_once(self) -> None:
        # Once only: a second cancellation would break into vLLM-Omni's own clean-up of the first.
        if not self._cancelled:
            self._cancelled = True
            if self.task is not None:
                self.task.cancel()

    def push(self, item: AudioChunk | SpeechError | None) -> None:
        """Hands a chunk, an error or the end (None) to the caller; callable from any thread."""
        # The caller's loop may have gone with its page; nobody is left to tell then.
        with contextlib.suppress(RuntimeError):
            self._caller_loop.call_soon_threadsafe(self._queue.put_nowait, item)

    def __aiter__(self) -> "EngineRun":
        return self

    async def __anext__(self) -> AudioChunk:
        if self._ended:
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, AudioChunk):
            return item
        self._ended = True
        if item is None:
            raise StopAsyncIteration
        raise item

    async def aclose(self) -> None:
        """Aborts every stage's share of the run, and returns once they have let go of it."""
        if self._ended:
            return
        self._ended = True
        self.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while await self._queue.get() is not None:
                    pass


def died(reason: str) -> EngineUnavailable:
    """What every running request is told when the engine fails under it."""
    return EngineUnavailable(f"The speech engine has stopped ({reason}); restart the app.")
