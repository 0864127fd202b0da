"""Times the code predictor inside the talker's process, without making a GPU wait."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from backend.frame_stats import FrameStatsWriter

# A run's name, and the number of its frame; each piece of a long text begins again at 0.
RunFrame = tuple[str, int]


@dataclass
class _Frame:
    frames: tuple[RunFrame, ...]
    start: Any
    end: Any = None


class FrameTimer:
    """Notes when each frame's prediction starts and ends, on the host's clock or the GPU's."""

    def __init__(self, stats: FrameStatsWriter, on_gpu: bool) -> None:
        self._stats = stats
        self._on_gpu = on_gpu
        self._pending: deque[_Frame] = deque()
        self._previous: _Frame | None = None

    @contextmanager
    def frame(self, frames: tuple[RunFrame, ...]) -> Iterator[None]:
        """Around the prediction of one frame of each run."""
        frame = _Frame(frames, self._now())
        yield
        frame.end = self._now()
        self._pending.append(frame)
        # What the GPU has finished by now; it is some frames behind.
        while self._pending and self._reached(self._pending[0].end):
            self._count(self._pending.popleft())

    def _count(self, frame: _Frame) -> None:
        self._stats.predictor_time([run for run, _ in frame.frames], self._between(frame.start, frame.end))
        if self._previous is not None:
            # Before a piece's first frame there was no frame, but a prompt.
            both = [run for run, number in frame.frames if (run, number - 1) in self._previous.frames]
            self._stats.interval(both, self._between(self._previous.start, frame.start))
        self._previous = frame

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _reached(self, moment: Any) -> bool:
        return not self._on_gpu or bool(moment.query())

    def _between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) if self._on_gpu else 1e3 * (end - start)
