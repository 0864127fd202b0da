"""A speech engine without a model, behind the real one's protocol: noise at a chosen speed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from backend.contract import (
    AudioChunk,
    Capabilities,
    EngineStatus,
    FinishReason,
    FrameStats,
    InvalidRequest,
    Mode,
    Pcm,
    Phase,
    QueueFull,
    ReferenceClip,
    RunReport,
    SpeechError,
    SpeechRequest,
    Task,
)
from ui.start_buffer import chunk_sizes

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 1920
FRAME_S = SAMPLES_PER_FRAME / SAMPLE_RATE_HZ

CAPABILITIES = Capabilities(
    model="Fake-TTS-Base",
    device="CPU",
    mode="eager",
    tasks=(Task.VOICE_CLONE,),
    languages=("Auto", "English", "German", "Chinese"),
    speakers=(),
    supports_instruction=False,
    supports_x_vector=True,
    supports_predictor_sampling=True,
    sample_rate_hz=SAMPLE_RATE_HZ,
    samples_per_frame=SAMPLES_PER_FRAME,
    max_text_chars=dict.fromkeys(Task, 600),
    max_frames=2000,
    chunk_schedule_frames=(4, 4, 8, 16, 25),
    max_first_chunk_frames=25,
    defaults={"temperature": 0.9, "top_k": 50, "predictor_temperature": 0.8, "predictor_top_k": 40},
    graph_unavailable="there is no CUDA graph on the CPU",
)
WITH_GRAPH = replace(CAPABILITIES, device="Fake GPU", mode="CUDA graph", graph_unavailable="")
NAMED_SPEAKERS = replace(
    CAPABILITIES,
    model="Fake-TTS-CustomVoice",
    tasks=(Task.NAMED_SPEAKER,),
    speakers=("Vivian", "Ryan"),
    supports_instruction=True,
)
VOICE_DESIGN = replace(
    CAPABILITIES, model="Fake-TTS-VoiceDesign", tasks=(Task.VOICE_DESIGN,), supports_instruction=True
)

# As Audio8 TTS: a voice of the model's choice, or one from a clip with its transcript.
TEXT_OR_CLIP = replace(
    CAPABILITIES,
    model="Fake-TTS-TextOrClip",
    max_text_chars={Task.TEXT_ONLY: 600, Task.VOICE_CLONE: 10_000},
    tasks=(Task.TEXT_ONLY, Task.VOICE_CLONE),
    languages=("Auto",),
    supports_x_vector=False,
    supports_predictor_sampling=False,
)


def noise(frames: int, seed: int) -> Pcm:
    """White noise of `frames` codec frames, [frames * 1920] int16, with no sample of zero."""
    samples = np.random.default_rng(seed).integers(1, 6000, frames * SAMPLES_PER_FRAME)
    signs = np.random.default_rng(seed + 1).choice((-1, 1), len(samples))
    return (samples * signs).astype(np.int16)


@dataclass
class FakeSpeechEngine:
    """Serves `max_running` runs at once, each in its own time; the rest wait in order of arrival.

    Fields may be changed between runs. `frames` of None takes the length from the text.
    """

    capabilities_when_ready: Capabilities = CAPABILITIES
    phase: Phase = Phase.READY
    detail: str = ""
    rtf: float = 0.3
    ttfa_s: float = 0.1
    frames: int | None = 40
    known_rtf: float | None = 0.3
    max_running: int = 2
    max_waiting: int = 4
    fail_after_chunks: int | None = None
    failure: Exception = field(default_factory=lambda: SpeechError("The talker stage has died."))
    stall_after_chunks: int | None = None
    requests: list[SpeechRequest] = field(default_factory=list)
    runs: list["FakeRun"] = field(default_factory=list)
    on_report: Callable[[RunReport], None] = lambda _: None

    def __post_init__(self) -> None:
        self._ids = count(1)
        self.accepted: list[FakeRun] = []

    @property
    def status(self) -> EngineStatus:
        running = min(len(self.accepted), self.max_running)
        return EngineStatus(self.phase, self.detail, running, len(self.accepted) - running, self.known_rtf)

    @property
    def capabilities(self) -> Capabilities | None:
        return None if self.phase in (Phase.LOADING, Phase.WARMING) else self.capabilities_when_ready

    def start(self) -> None:
        self.phase = Phase.READY

    def shutdown(self) -> None:
        self.phase = Phase.CLOSED

    def synthesize(self, request: SpeechRequest) -> "FakeRun":
        self._check(request)
        if (unavailable := self.status.unavailable) is not None:
            raise unavailable
        if len(self.accepted) >= self.max_running + self.max_waiting:
            raise QueueFull("Too many requests are waiting; try again in 5 s.", 5.0)
        run = FakeRun(self, request, f"run-{next(self._ids)}")
        self.requests.append(request)
        self.runs.append(run)
        self.accepted.append(run)
        return run

    def _check(self, request: SpeechRequest) -> None:
        capabilities = self.capabilities_when_ready
        if not request.text.strip():
            raise InvalidRequest("There is no text to say.", "text")
        if any(0xD800 <= ord(character) < 0xE000 for character in request.text):
            raise InvalidRequest("The text holds half of a surrogate pair.", "text")
        most = capabilities.max_text_chars[request.task]
        if len(request.text) > most:
            raise InvalidRequest(f"The text has {len(request.text)} characters; the limit is {most}.", "text")
        for name, low, high in (
            ("max_frames", 2, capabilities.max_frames),
            ("first_chunk_frames", 1, capabilities.max_first_chunk_frames),
            ("seed", 0, 2**31 - 1),
        ):
            value = getattr(request, name)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(f"{name} must be from {low} to {high}, not {value}.", name)
        if request.language not in capabilities.languages:
            raise InvalidRequest(f"There is no language {request.language!r}.", "language")
        if request.speaker and request.speaker not in capabilities.speakers:
            raise InvalidRequest(f"There is no speaker {request.speaker!r}.", "speaker")


class FakeRun:
    def __init__(self, engine: FakeSpeechEngine, request: SpeechRequest, request_id: str) -> None:
        self.request_id = request_id
        self.request = request
        self.seed = request.seed if request.seed is not None else 1000 + int(request_id.split("-")[1])
        self.report: RunReport | None = None
        self.closed = False
        # Unix time at which the first chunk left the engine.
        self.first_chunk_at_s: float | None = None
        self._engine = engine
        self._chunks = self._make()

    @property
    def ahead(self) -> int:
        if self not in self._engine.accepted:
            return 0
        return max(0, self._engine.accepted.index(self) - self._engine.max_running + 1)

    @property
    def pcm(self) -> Pcm:
        """All the audio this run makes if it is let."""
        frames = self._engine.frames or max(8, round(len(self.request.text) / 14 / FRAME_S))
        if self.request.max_frames:
            frames = min(frames, self.request.max_frames)
        return noise(frames, self.seed)

    def __aiter__(self) -> "FakeRun":
        return self

    async def __anext__(self) -> AudioChunk:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        self.closed = True
        await self._chunks.aclose()
        self._leave(FinishReason.ABORTED)

    async def _make(self) -> AsyncIterator[AudioChunk]:
        engine, loop = self._engine, asyncio.get_running_loop()
        accepted = loop.time()
        while self.ahead:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        began = loop.time()
        self._progress: dict[str, Any] = {
            "queue_s": began - accepted,
            "began": began,
            "samples": 0,
            "chunks": 0,
        }
        pcm = self.pcm
        for index, samples in enumerate(self._sizes(len(pcm))):
            if engine.stall_after_chunks == index:
                await asyncio.sleep(3600)
            if engine.fail_after_chunks == index:
                self._leave(FinishReason.FAILED)
                raise engine.failure
            start = self._progress["samples"]
            due = began + engine.ttfa_s + engine.rtf * (start + samples - self._first) / SAMPLE_RATE_HZ
            await asyncio.sleep(max(0.0, due - loop.time()))
            elapsed = loop.time() - began
            self._progress |= {"samples": start + samples, "chunks": index + 1}
            self._progress.setdefault("ttfa_s", elapsed)
            self.first_chunk_at_s = self.first_chunk_at_s or time.time()
            yield AudioChunk(pcm[start : start + samples], SAMPLE_RATE_HZ, index, elapsed)
        cut = self.request.max_frames is not None and len(pcm) == self.request.max_frames * SAMPLES_PER_FRAME
        self._leave(FinishReason.LENGTH if cut else FinishReason.STOP)

    def _sizes(self, total: int) -> Iterator[int]:
        schedule = self._engine.capabilities_when_ready.chunk_schedule_frames
        self._first = 0
        if not self.request.stream:
            self._first = total
            yield total
            return
        for frames in chunk_sizes(schedule, self.request.first_chunk_frames):
            size = min(frames * SAMPLES_PER_FRAME, total)
            self._first = self._first or size
            if size <= 0:
                return
            yield size
            total -= size

    def _leave(self, reason: FinishReason) -> None:
        if self in self._engine.accepted:
            self._engine.accepted.remove(self)
        if self.report is not None:
            return
        progress = getattr(self, "_progress", None)
        now = asyncio.get_running_loop().time()
        samples = progress["samples"] if progress else 0
        mode = self.request.mode or self._engine.capabilities_when_ready.mode
        predictor_ms = 2.0 if mode == Mode.GRAPH else 10.0
        frames = samples // SAMPLES_PER_FRAME
        self.report = RunReport(
            request_id=self.request_id,
            seed=self.seed,
            mode=str(mode),
            finish_reason=reason,
            chunks=progress["chunks"] if progress else 0,
            frames=samples // SAMPLES_PER_FRAME,
            audio_s=samples / SAMPLE_RATE_HZ,
            queue_s=progress["queue_s"] if progress else 0.0,
            ttfa_s=progress.get("ttfa_s") if progress else None,
            total_s=now - progress["began"] if progress else 0.0,
            frame_stats=FrameStats(frames, frames * (mode == Mode.GRAPH), predictor_ms, 5.0, 0, ""),
        )
        self._engine.on_report(self.report)


@contextmanager
def served(engine: FakeSpeechEngine, voices: Sequence[Any] = (), **launch: Any) -> Iterator[str]:
    """The page for `engine` on a free port of this machine, served from a thread; gives its URL."""
    from ui.page import build_page
    from ui.theme import launch_options

    page = build_page(engine, voices, load_clip=launch.pop("load_clip", fake_clip_loader))
    options = launch_options() | {"server_name": "127.0.0.1", "quiet": True} | launch
    _, url, _ = page.queue().launch(prevent_thread_lock=True, **options)
    try:
        yield url
    finally:
        page.close(verbose=False)


def fake_clip_loader(path: Path) -> ReferenceClip:
    """Takes any file for one second of silence."""
    return ReferenceClip(np.zeros(SAMPLE_RATE_HZ, np.float32), SAMPLE_RATE_HZ)
