"""Requests to the real engine, and their audio."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from backend.contract import AudioChunk, Pcm, ReferenceClip, RunReport, SpeechEngine, SpeechRequest, Task
from backend.reference_audio import load_reference_clip
from backend.voices import load_preset_voices

CONCURRENCY_LIMIT = 4
QUEUE_SIZE = 2
SAMPLES_PER_FRAME = 1920
VOICES = load_preset_voices()
SENTENCE = "The engine speaks this sentence, and stops at its end."


@cache
def clip(voice: int) -> ReferenceClip:
    return load_reference_clip(VOICES[voice].audio_path)


def request(voice: int = 0, **values: Any) -> SpeechRequest:
    """A clone of a preset voice by x-vector, with seed 7, unless told otherwise."""
    plain = SpeechRequest(SENTENCE, Task.VOICE_CLONE, reference=clip(voice), x_vector_only=True, seed=7)
    return replace(plain, **values)


def in_context(voice: int = 0, **values: Any) -> SpeechRequest:
    return request(voice, **{"x_vector_only": False, "transcript": VOICES[voice].transcript, **values})


@dataclass(frozen=True)
class Speech:
    chunks: list[AudioChunk]
    report: RunReport

    @property
    def pcm(self) -> Pcm:
        return np.concatenate([chunk.pcm for chunk in self.chunks])

    @property
    def chunk_frames(self) -> list[float]:
        return [len(chunk.pcm) / SAMPLES_PER_FRAME for chunk in self.chunks]


async def speak(engine: SpeechEngine, asked: SpeechRequest) -> Speech:
    run = engine.synthesize(asked)
    chunks = [chunk async for chunk in run]
    assert run.report is not None
    assert run.report.request_id == run.request_id
    return Speech(chunks, run.report)
