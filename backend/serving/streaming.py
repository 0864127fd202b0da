"""A run's audio on its way to a client, who may leave at any moment."""

import asyncio
import base64
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backend.contract import AudioChunk, EngineUnavailable, FinishReason, Pcm, SpeechError, SpeechRun
from backend.serving.formats import MEDIA_TYPES, open_ended_wav_header, pcm_bytes
from backend.serving.schema import AudioFormat
from backend.serving.tempo import Tempo

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class ClientLeft(Exception):
    """The client closed its connection before it had everything."""


class Incomplete(EngineUnavailable):
    """The run ended before the speech did, and not by the client's wish."""


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives; it is cancelled, and ClientLeft raised, as soon as the client is gone."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        # Nothing may iterate a run any more when it is closed.
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait({working, leaving})


async def first_chunk(run: SpeechRun) -> AudioChunk:
    """Raises Incomplete where there is none."""
    async for chunk in run:
        return chunk
    raise Incomplete("The engine gave no audio for this; try again.")


async def whole(run: SpeechRun, first: AudioChunk) -> Pcm:
    """All of the run's audio, [samples]; raises Incomplete where it was cut off."""
    pieces = [first.pcm, *[chunk.pcm async for chunk in run]]
    check_complete(run)
    return np.concatenate(pieces)


def check_complete(run: SpeechRun) -> None:
    if run.report is not None and run.report.finish_reason in (FinishReason.ABORTED, FinishReason.FAILED):
        raise Incomplete("The engine was stopped before the speech was finished; try again.")


async def close(run: SpeechRun) -> None:
    """Aborts what is left of the run, also when the caller itself is being cancelled."""
    await asyncio.shield(run.aclose())


class StreamedSpeech(Response):
    """The run's chunks as they come, from `first` on, each turned into bytes by `wire`.

    A run that fails breaks the connection off: HTTP has no other way to say so once a status is sent.
    """

    def __init__(self, run: SpeechRun, first: AudioChunk, wire: "Wire", headers: Mapping[str, str]) -> None:
        super().__init__(None, headers=headers, media_type=wire.media_type)
        del self.headers["content-length"]
        self._run, self._first, self._wire = run, first, wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_client_leaves(receive, self._send(send))
        except ClientLeft:
            logger.info("%s: the client has left.", self._run.request_id)
        except SpeechError as error:
            logger.warning("%s breaks off: %s", self._run.request_id, error)
        finally:
            await close(self._run)

    async def _send(self, send: Send) -> None:
        async def body(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await body(self._wire.begin() + self._wire.audio(self._first.pcm))
        async for chunk in self._run:
            await body(self._wire.audio(chunk.pcm))
        check_complete(self._run)
        await body(self._wire.end(self._run), more=False)


class Wire:
    """Raw bytes: samples without a header (pcm), or behind the header of a WAV of unknown length."""

    def __init__(self, audio_format: AudioFormat, sample_rate_hz: int, speed: float) -> None:
        self.media_type = MEDIA_TYPES[audio_format]
        self._header = open_ended_wav_header(sample_rate_hz) if audio_format == "wav" else b""
        self._tempo = Tempo(speed, sample_rate_hz) if speed != 1.0 else None

    def begin(self) -> bytes:
        return self._header

    def audio(self, pcm: Pcm) -> bytes:
        """A chunk, [samples]; empty where nothing is ready yet at another speed."""
        return pcm_bytes(self._tempo.push(pcm) if self._tempo else pcm)

    def end(self, run: SpeechRun) -> bytes:
        return pcm_bytes(self._tempo.finish()) if self._tempo else b""


class EventWire(Wire):
    """The same bytes in OpenAI's speech.audio.delta events, then speech.audio.done."""

    def __init__(self, audio_format: AudioFormat, sample_rate_hz: int, speed: float) -> None:
        super().__init__(audio_format, sample_rate_hz, speed)
        self.media_type = "text/event-stream"

    def begin(self) -> bytes:
        return _delta(super().begin())

    def audio(self, pcm: Pcm) -> bytes:
        return _delta(super().audio(pcm))

    def end(self, run: SpeechRun) -> bytes:
        frames = run.report.frames if run.report else 0
        return _delta(super().end(run)) + _event("speech.audio.done", usage={"output_tokens": frames})


def _delta(data: bytes) -> bytes:
    return _event("speech.audio.delta", audio=base64.b64encode(data).decode()) if data else b""


def _event(kind: str, **values: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **values})}\n\n".encode()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
