"""Faster or slower speech at the same pitch, while it is being made."""

import av
import numpy as np
from av.filter import Graph

from backend.contract import Pcm

# The least that one atempo does; below it, several follow each other.
_MIN_STEP = 0.5


class Tempo:
    """FFmpeg's atempo (overlap-add of similar pieces) as a stream: what `push` and `finish` give, joined,
    is the whole at `speed`, whatever the pieces were.
    """

    def __init__(self, speed: float, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._pushed_samples = 0
        self._graph = Graph()
        last = self._graph.add(
            "abuffer",
            sample_rate=str(sample_rate_hz),
            sample_fmt="s16",
            channel_layout="mono",
            time_base=f"1/{sample_rate_hz}",
        )
        for step in _steps(speed):
            tempo = self._graph.add("atempo", str(step))
            last.link_to(tempo)
            last = tempo
        last.link_to(self._graph.add("abuffersink"))
        self._graph.configure()

    def push(self, pcm: Pcm) -> Pcm:
        """Takes [samples] and gives what is ready, perhaps nothing."""
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm).reshape(1, -1), "s16", "mono")
        frame.rate, frame.pts = self._rate_hz, self._pushed_samples
        self._pushed_samples += len(pcm)
        self._graph.push(frame)
        return self._ready()

    def finish(self) -> Pcm:
        """The rest; nothing may be pushed after it."""
        self._graph.push(None)
        return self._ready()

    def _ready(self) -> Pcm:
        pieces = [np.zeros(0, np.int16)]
        while True:
            try:
                pieces.append(self._graph.pull().to_ndarray()[0])
            except (av.BlockingIOError, av.EOFError):
                return np.concatenate(pieces)


def at_speed(pcm: Pcm, sample_rate_hz: int, speed: float) -> Pcm:
    """A whole clip, [samples]."""
    tempo = Tempo(speed, sample_rate_hz)
    return np.concatenate([tempo.push(pcm), tempo.finish()])


def _steps(speed: float) -> list[float]:
    steps = []
    while speed < _MIN_STEP:
        steps.append(_MIN_STEP)
        speed /= _MIN_STEP
    return [*steps, speed]
