"""Pieces of speech joined into one, with a pause of a natural length between them."""

import numpy as np

from backend.contract import Pcm

# Between sentences people pause for about a quarter of a second.
MAX_PAUSE_BEFORE_S, MAX_PAUSE_AFTER_S = 0.15, 0.1
MIN_PAUSE_S = 0.12
# -60 dB of full scale, and -40 dB of the loudest sample so far.
_SILENCE, _SILENCE_SHARE = 33, 0.01


class Joiner:
    """Passes audio on as it comes, but holds back silence at the end of a piece until it is known how
    much of it is to be kept. Everything is [samples] at `sample_rate_hz`.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._most_before = round(MAX_PAUSE_BEFORE_S * sample_rate_hz)
        self._most_after = round(MAX_PAUSE_AFTER_S * sample_rate_hz)
        self._least = round(MIN_PAUSE_S * sample_rate_hz)
        self._peak = 0
        self._held = np.zeros(0, np.int16)
        # Samples of silence already passed on before a piece that has not begun to sound; None elsewhere.
        self._pause: int | None = None

    def add(self, pcm: Pcm) -> Pcm:
        """What of the piece so far can be played."""
        self._peak = max(self._peak, int(np.abs(pcm.astype(np.int32)).max(initial=0)))
        samples = np.concatenate([self._held, pcm])
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > max(_SILENCE, _SILENCE_SHARE * self._peak))
        if len(loud) == 0:
            self._held = samples
            return samples[:0]
        first, last = int(loud[0]), int(loud[-1]) + 1
        self._held = samples[last:]
        if self._pause is None:
            return samples[:last]
        kept = min(first, self._most_after)
        missing = np.zeros(max(0, self._least - self._pause - kept), np.int16)
        self._pause = None
        return np.concatenate([missing, samples[first - kept : last]])

    def end_piece(self) -> Pcm:
        """The end of a piece that another one follows."""
        silence, self._held = self._held[: self._most_before], self._held[:0]
        if self._pause is not None:  # nothing was heard of this piece
            return silence[:0]
        self._pause = len(silence)
        return silence

    def end(self) -> Pcm:
        """The end of the last piece, whose silence is kept."""
        silence, self._held = self._held, self._held[:0]
        return silence
