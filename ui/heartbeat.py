"""Waiting for a run's chunks without going quiet."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from backend.contract import AudioChunk, SpeechRun

HEARTBEAT_S = 0.4


async def chunks_or_heartbeats(
    run: SpeechRun, stopped: asyncio.Event, every_s: float
) -> AsyncGenerator[AudioChunk | None, None]:
    """The run's chunks, and None whenever none has come for `every_s`; ends early on `stopped`.

    Gradio tells a handler that its visitor has left, or was told to stop, only when the handler
    yields, so a handler that waits silently for audio cannot be ended.
    """
    stop = asyncio.ensure_future(stopped.wait())
    upcoming: asyncio.Future[AudioChunk] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(run))
            waiting: list[asyncio.Future[Any]] = [upcoming, stop]
            await asyncio.wait(waiting, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                return
            if not upcoming.done():
                yield None
                continue
            try:
                chunk = upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = None
            yield chunk
    finally:
        stop.cancel()
        # The run may be closed only once nothing iterates it any more.
        if upcoming and not upcoming.done():
            upcoming.cancel()
            await asyncio.wait({upcoming})
