"""What the engine and its callers agree on. Imports neither torch nor vLLM nor Gradio."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.int16]

# What a person is told of an error that nobody foresaw.
UNEXPECTED_ERROR = "Something went wrong on the server; its log has the details."
NO_GRAPH_ON_CPU = "there is no CUDA graph on the CPU"


class Task(StrEnum):
    """How a voice is chosen. The first three are named as in vLLM-Omni, which has no name for the last."""

    VOICE_CLONE = "Base"
    NAMED_SPEAKER = "CustomVoice"
    VOICE_DESIGN = "VoiceDesign"
    TEXT_ONLY = "TextOnly"  # the model speaks in a voice of its own choice


class Phase(StrEnum):
    """Where the engine is in its life; only READY serves requests."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


class Mode(StrEnum):
    """How the code predictor runs."""

    GRAPH = "CUDA graph"
    EAGER = "eager"


class FinishReason(StrEnum):
    STOP = "stop"  # the talker sampled its end-of-speech token
    LENGTH = "length"  # max_frames was reached first
    ABORTED = "aborted"
    FAILED = "failed"


class SpeechError(Exception):
    """Something a user can meet. The message is one sentence that says what to do."""


class InvalidRequest(SpeechError):
    """The request cannot be served by the loaded model; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(SpeechError):
    """As many requests wait as are allowed to."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailable(SpeechError):
    """The engine is not ready, or has failed."""


@dataclass(frozen=True)
class ReferenceClip:
    """A voice to clone: mono float32 samples in [-1, 1] at `sample_rate_hz`, shape [samples]."""

    samples: NDArray[np.float32]
    sample_rate_hz: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate_hz


@dataclass(frozen=True)
class SpeechRequest:
    """One utterance. A value of None means the engine's default."""

    text: str
    task: Task
    language: str = "Auto"
    speaker: str | None = None
    reference: ReferenceClip | None = None
    transcript: str = ""
    x_vector_only: bool = False
    instruction: str = ""
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    max_frames: int | None = None
    first_chunk_frames: int | None = None
    stream: bool = True
    # None is a CUDA graph where there is one.
    mode: Mode | None = None
    # Of the code predictor, which draws all but the first of a frame's codes.
    predictor_temperature: float | None = None
    predictor_top_k: int | None = None


@dataclass(frozen=True)
class AudioChunk:
    """A piece of a run's audio, in order: int16 mono PCM, shape [samples].

    `elapsed_s` counts from when the engine took the request up (after any queue)
    to when this chunk left the engine.
    """

    pcm: Pcm
    sample_rate_hz: int
    index: int
    elapsed_s: float


@dataclass(frozen=True)
class FrameStats:
    """One run's frames: how many, how many by graph, and milliseconds of each on average.

    `predictor_ms` is the code predictor alone, `talker_ms` the rest of the time from one frame to the
    next: the talker's step, its sampler and the hand-over. None where nothing was timed.
    """

    frames: int
    graph_frames: int
    predictor_ms: float | None
    talker_ms: float | None
    # Frames that were to use a graph and did not, and the latest reason.
    fallbacks: int
    fallback_reason: str


@dataclass(frozen=True)
class RunReport:
    """What a finished run measured. `ttfa_s` is the engine's: request taken up to first chunk out."""

    request_id: str
    seed: int
    mode: str
    finish_reason: FinishReason
    chunks: int
    frames: int
    audio_s: float
    queue_s: float
    ttfa_s: float | None
    total_s: float
    notes: tuple[str, ...] = ()
    frame_stats: FrameStats | None = None

    @property
    def rtf(self) -> float | None:
        """Generation time / audio time; below 1 is faster than real time."""
        return self.total_s / self.audio_s if self.audio_s else None


@dataclass(frozen=True)
class Capabilities:
    """What the loaded checkpoint and engine can do; known once the engine is READY."""

    model: str
    device: str
    mode: str
    tasks: tuple[Task, ...]
    languages: tuple[str, ...]
    speakers: tuple[str, ...]
    supports_instruction: bool
    # Whether a voice can be cloned from a clip without its transcript.
    supports_x_vector: bool
    # Whether a request may sample the code predictor in its own way.
    supports_predictor_sampling: bool
    sample_rate_hz: int
    samples_per_frame: int
    # The longest text of one request.
    max_text_chars: Mapping[Task, int]
    max_frames: int
    # Frames of each streamed chunk; the last entry repeats.
    chunk_schedule_frames: tuple[int, ...]
    # The largest first chunk a request may ask for; 0 where the stage configuration fixes it.
    max_first_chunk_frames: int
    # Rough speech rate, for a duration estimate beside the text box.
    chars_per_s: float = 14.0
    # What the page says of a checkpoint that is not the obvious one or has random weights; else empty.
    notice: str = ""
    defaults: dict[str, float] = field(default_factory=dict)
    # Why no run can use a CUDA graph; empty where they can.
    graph_unavailable: str = ""


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot: `detail` is what is being done or why it failed, `recent_rtf` None before the first run."""

    phase: Phase
    detail: str
    running: int
    queued: int
    recent_rtf: float | None = None

    @property
    def unavailable(self) -> EngineUnavailable | None:
        """The refusal of a request made now; None when READY."""
        if self.phase is Phase.READY:
            return None
        return EngineUnavailable(_UNAVAILABLE[self.phase].format(detail=self.detail))


_UNAVAILABLE = {
    Phase.LOADING: "The speech engine is still loading ({detail}); try again in a moment.",
    Phase.WARMING: "The speech engine is warming up; try again in a moment.",
    Phase.FAILED: "The speech engine has failed ({detail}); restart the app.",
    Phase.CLOSED: "The speech engine has been shut down; restart the app.",
}


class SpeechRun(Protocol):
    """One accepted request: iterate it for chunks; closing it aborts every stage.

    Raises SpeechError from iteration if the run fails. `report` is None until
    the run has ended, however it ended.
    """

    request_id: str
    seed: int
    report: RunReport | None

    @property
    def ahead(self) -> int:
        """How many accepted runs are served before this one; 0 once it is being served."""
        ...

    def __aiter__(self) -> AsyncIterator[AudioChunk]: ...

    async def __anext__(self) -> AudioChunk: ...

    async def aclose(self) -> None: ...


class SpeechEngine(Protocol):
    """Text to streamed speech. Calls are safe from any event loop or thread.

    `on_report` is called with the report of each run that has ended, on any thread.
    """

    on_report: Callable[[RunReport], None]

    @property
    def status(self) -> EngineStatus: ...

    @property
    def capabilities(self) -> Capabilities | None:
        """None until READY."""
        ...

    def start(self) -> None:
        """Begins loading in the background and returns at once; watch `status`."""
        ...

    def synthesize(self, request: SpeechRequest) -> SpeechRun:
        """Accepts a request, to be iterated on the calling event loop.

        Raises InvalidRequest, QueueFull or EngineUnavailable at once.
        """
        ...

    def shutdown(self) -> None:
        """Ends running requests, stops every stage process; blocks at most about 10 s."""
        ...
