"""How the talker's process tells the application what each run's frames took and how they were made.

vLLM-Omni has no way back for a stage's own figures, so they travel in a file both map into memory:
one slot a run, written in place by the talker, read by the application when the run has ended.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backend.contract import FrameStats

# Names the file to stage processes; unset where nobody asks.
VARIABLE = "TTS_FRAME_STATS"
SLOTS = 1024
_SLOT = np.dtype(
    [
        ("run", "S40"),
        ("frames", "i4"),
        ("graph_frames", "i4"),
        ("timed_frames", "i4"),
        ("predictor_ms", "f8"),
        ("intervals", "i4"),
        ("interval_ms", "f8"),
        ("fallbacks", "i4"),
        ("reason", "S120"),
    ]
)


class FrameStatsWriter:
    """The talker's side."""

    def __init__(self, path: str) -> None:
        self._slots = np.memmap(path, dtype=_SLOT, mode="r+", shape=(SLOTS,))
        self._by_run: dict[str, int] = {}
        self._next = 0

    @classmethod
    def from_environment(cls) -> "FrameStatsWriter | None":
        path = os.environ.get(VARIABLE)
        return cls(path) if path else None

    def frame(self, run: str, by_graph: bool, fallback: str | None) -> None:
        slot = self._slot(run)
        slot["frames"] += 1
        slot["graph_frames"] += by_graph
        if fallback is not None:
            slot["fallbacks"] += 1
            slot["reason"] = fallback.encode()

    def predictor_time(self, runs: Sequence[str], milliseconds: float) -> None:
        for run in runs:
            slot = self._slot(run)
            slot["timed_frames"] += 1
            slot["predictor_ms"] += milliseconds

    def interval(self, runs: Sequence[str], milliseconds: float) -> None:
        """From the start of one frame's prediction to that of the next, for runs that were in both."""
        for run in runs:
            slot = self._slot(run)
            slot["intervals"] += 1
            slot["interval_ms"] += milliseconds

    def _slot(self, run: str) -> np.void:
        index = self._by_run.get(run)
        if index is None:
            index = self._next
            self._next = (self._next + 1) % SLOTS
            self._by_run = {name: taken for name, taken in self._by_run.items() if taken != index}
            self._by_run[run] = index
            self._slots[index] = np.zeros((), _SLOT)
            self._slots[index]["run"] = run.encode()
        slot: np.void = self._slots[index]
        return slot


class FrameStatsReader:
    """The application's side; makes the file."""

    def __init__(self, path: Path) -> None:
        self._slots = np.memmap(path, dtype=_SLOT, mode="w+", shape=(SLOTS,))

    def of(self, run: str) -> FrameStats | None:
        """None for a run that made no frame, or so long ago that its slot was taken again."""
        found = np.flatnonzero(self._slots["run"] == run.encode())
        if not found.size:
            return None
        slot = self._slots[found[-1]].copy()
        predictor_ms = _mean(slot["predictor_ms"], slot["timed_frames"])
        interval_ms = _mean(slot["interval_ms"], slot["intervals"])
        talker_ms = (
            None if predictor_ms is None or interval_ms is None else max(0.0, interval_ms - predictor_ms)
        )
        return FrameStats(
            frames=int(slot["frames"]),
            graph_frames=int(slot["graph_frames"]),
            predictor_ms=predictor_ms,
            talker_ms=talker_ms,
            fallbacks=int(slot["fallbacks"]),
            fallback_reason=bytes(slot["reason"]).decode(),
        )


def _mean(total: float, count: int) -> float | None:
    return float(total / count) if count else None
