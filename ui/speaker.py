"""The page's handler: one utterance from its fields to played audio."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import gradio as gr
import numpy as np

from backend.contract import (
    UNEXPECTED_ERROR,
    AudioChunk,
    Capabilities,
    InvalidRequest,
    Pcm,
    SpeechEngine,
    SpeechError,
    SpeechRequest,
    SpeechRun,
    Task,
)
from backend.voices import ClipLoader, PresetVoice
from ui.heartbeat import HEARTBEAT_S, chunks_or_heartbeats
from ui.player import SpeechPlayer
from ui.request import Fields, build_request
from ui.run_view import RunState, RunView, finished_view
from ui.start_buffer import StartBuffer
from ui.stops import Stops

logger = logging.getLogger(__name__)

# What one yield carries: the player's chunk, the finished clip, the panel's view.
Update = tuple[Any, Any, Any]


class Speaker:
    """Serves the page's Speak and Stop buttons."""

    def __init__(self, engine: SpeechEngine, voices: Sequence[PresetVoice], load_clip: ClipLoader) -> None:
        self._engine = engine
        self._voices = voices
        self._load_clip = load_clip
        self._stops = Stops()

    async def speak(
        self, fields: Fields, task: str | None, run_id: str | None
    ) -> AsyncGenerator[Update, None]:
        """Yields (chunk, clip, view) as they come; the last yield has the whole clip and all figures.

        A failed run yields its audio so far and its view, then raises gr.Error with one sentence.
        """
        run_id = run_id or secrets.token_hex(8)
        with self._stops.watch(run_id) as stopped:
            utterance = Utterance(self._engine, run_id, stopped)
            try:
                yield gr.skip(), None, utterance.view()
                request = await self._request(fields, task)
                async with aclosing(utterance.updates(request)) as updates:
                    async for update in updates:
                        yield update
            except SpeechError as error:
                yield utterance.failed(str(error))
                raise _error(str(error)) from error
            except Exception as error:
                logger.exception("run %s failed", run_id)
                yield utterance.failed(UNEXPECTED_ERROR)
                raise _error(UNEXPECTED_ERROR) from error

    async def stop(self, run_id: str) -> None:
        self._stops.stop(run_id)

    async def _request(self, fields: Fields, task: str | None) -> SpeechRequest:
        if (unavailable := self._engine.status.unavailable) is not None:
            raise unavailable
        capabilities = self._engine.capabilities
        assert capabilities is not None
        chosen = chosen_task(task, capabilities)
        return await asyncio.to_thread(
            build_request, fields, chosen, capabilities, self._voices, self._load_clip
        )


class Utterance:
    """One run: its audio so far, and what the page is told about it."""

    def __init__(self, engine: SpeechEngine, run_id: str, stopped: asyncio.Event) -> None:
        self._engine = engine
        self._run_id = run_id
        self._stopped = stopped
        self._chunks: list[AudioChunk] = []

    async def updates(self, request: SpeechRequest) -> AsyncGenerator[Update, None]:
        capabilities = self._engine.capabilities
        assert capabilities is not None
        buffer = StartBuffer(
            schedule_frames=capabilities.chunk_schedule_frames,
            frame_s=capabilities.samples_per_frame / capabilities.sample_rate_hz,
            expected_s=len(request.text) / capabilities.chars_per_s,
            recent_rtf=self._engine.status.recent_rtf,
            first_chunk_frames=request.first_chunk_frames,
        )
        run = self._engine.synthesize(request)
        try:
            yield gr.skip(), gr.skip(), self.view(run.ahead)
            async with aclosing(chunks_or_heartbeats(run, self._stopped, HEARTBEAT_S)) as steps:
                async for chunk in steps:
                    if chunk is None:
                        self._check_engine()
                        yield gr.skip(), gr.skip(), self.view(run.ahead)
                        continue
                    self._chunks.append(chunk)
                    hold_s = buffer.add(chunk)
                    yield SpeechPlayer.chunk_value(self._run_id, chunk, hold_s), gr.skip(), self.view()
        finally:
            await run.aclose()
        # The player is released first; making the clip's file takes a moment.
        end = SpeechPlayer.end_value(self._run_id, len(self._chunks), capabilities.sample_rate_hz)
        view = self._ended(run)
        yield end, gr.skip(), view
        yield end, self._clip(), view

    def view(self, ahead: int = 0) -> RunView:
        return RunView(
            run_id=self._run_id,
            state=RunState.QUEUED if ahead else RunState.GENERATING,
            ahead=ahead,
            chunks=len(self._chunks),
            audio_s=self._audio_s,
            ttfa_s=self._chunks[0].elapsed_s if self._chunks else None,
        )

    def failed(self, sentence: str) -> Update:
        view = replace(self.view(), state=RunState.FAILED, message=sentence)
        return gr.skip(), self._clip(), view

    def _ended(self, run: SpeechRun) -> RunView:
        stopped = self._stopped.is_set()
        if run.report is None:
            return replace(self.view(), state=RunState.STOPPED if stopped else RunState.FINISHED)
        return finished_view(self._run_id, run.report, stopped=stopped)

    def _check_engine(self) -> None:
        if (unavailable := self._engine.status.unavailable) is not None:
            raise unavailable

    @property
    def _audio_s(self) -> float:
        return sum(len(chunk.pcm) / chunk.sample_rate_hz for chunk in self._chunks)

    def _clip(self) -> tuple[int, Pcm] | None:
        if not self._chunks:
            return None
        return self._chunks[0].sample_rate_hz, np.concatenate([chunk.pcm for chunk in self._chunks])


def _error(sentence: str) -> gr.Error:
    # The panel shows the sentence; a toast would only cover the Speak button. Clients get it too.
    return gr.Error(sentence, visible=False, print_exception=False)


def chosen_task(name: str | None, capabilities: Capabilities) -> Task:
    """The task a page or a client named, or the model's first. Raises InvalidRequest."""
    if not name:
        return capabilities.tasks[0]
    if name not in list(capabilities.tasks):
        able = ", ".join(capabilities.tasks)
        raise InvalidRequest(f"The loaded model cannot do {name!r}; it can do {able}.", "task")
    return Task(name)
