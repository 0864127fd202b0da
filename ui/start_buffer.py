"""How much audio to hold before playing, so that streamed speech never runs dry.

Chunk j arrives `rtf * sum(sizes up to j)` of audio time from now, and by then playback has used
up that much audio. It stays ahead exactly if, for every chunk j still to come,

    rtf * sum(upcoming[:j + 1]) <= buffered + sum(upcoming[:j])

so the buffer needed now is the largest of the differences. A player that holds less than that
may wait instead, as long as the missing audio would have lasted: both shift its deadlines alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat

from backend.chunk_ramp import ramp_from_first_chunk
from backend.contract import AudioChunk

# Until a run has been measured.
DEFAULT_RTF = 0.8
# Speed wobbles from chunk to chunk, and the event stream and browser add their own delay.
RTF_MARGIN = 1.1
JITTER_S = 0.12
# Slower than real time means waiting for a large part of the clip; past this, gaps are the lesser evil.
MAX_BUFFER_S = 12.0


def buffer_needed(upcoming: Sequence[float], rtf: float) -> float:
    """Audio to hold now so that playback outlasts the wait for each of the `upcoming` chunks.

    `upcoming` are the durations of the chunks still to come, in order; the result has their unit.
    """
    needed = arrived = 0.0
    for size in upcoming:
        needed = max(needed, rtf * (arrived + size) - arrived)
        arrived += size
    return needed


def chunk_sizes(schedule: Sequence[int], first: int | None = None) -> Iterator[int]:
    """Frames of each chunk without end: the last entry repeats.

    `first` replaces the first one, and no later chunk is smaller.
    """
    sizes = ramp_from_first_chunk(first, schedule, schedule[-1])
    return chain(sizes, repeat(sizes[-1]))


@dataclass
class StartBuffer:
    """The buffer one run needs, refined as its chunks arrive. Durations are seconds of audio."""

    schedule_frames: Sequence[int]
    frame_s: float
    expected_s: float
    recent_rtf: float | None = None
    first_chunk_frames: int | None = None
    _arrived: list[float] = field(default_factory=list, init=False)
    _elapsed: list[float] = field(default_factory=list, init=False)

    def add(self, chunk: AudioChunk) -> float:
        """Notes an arrived chunk; returns how much audio a player should hold to start now."""
        self._arrived.append(len(chunk.pcm) / chunk.sample_rate_hz)
        self._elapsed.append(chunk.elapsed_s)
        needed = buffer_needed(self._upcoming(), self.rtf * RTF_MARGIN)
        return min(needed + JITTER_S, MAX_BUFFER_S)

    @property
    def rtf(self) -> float:
        """The slower of the engine's recent speed and this run's own since its first chunk.

        The first chunk does not count: it also holds the prefill.
        """
        recent = self.recent_rtf if self.recent_rtf is not None else DEFAULT_RTF
        audio_s = sum(self._arrived[1:])
        if not audio_s:
            return recent
        own = (self._elapsed[-1] - self._elapsed[0]) / audio_s
        return max(recent, own) if self.recent_rtf is not None else own

    def _upcoming(self) -> list[float]:
        sizes = chunk_sizes(self.schedule_frames, self.first_chunk_frames)
        left_s = self.expected_s - sum(self._arrived)
        upcoming: list[float] = []
        for frames in islice(sizes, len(self._arrived), None):
            # Text length is a rough guide to duration, so one more chunk may always come.
            if upcoming and left_s <= 0:
                return upcoming
            upcoming.append(frames * self.frame_s)
            left_s -= upcoming[-1]
        return upcoming
