"""The pauses between pieces: never over 300 ms, never none."""

import numpy as np
import pytest
from numpy.typing import NDArray

from backend.joins import MAX_PAUSE_AFTER_S, MAX_PAUSE_BEFORE_S, MIN_PAUSE_S, Joiner

RATE_HZ = 24_000
Samples = NDArray[np.int16]


def sound(duration_s: float) -> Samples:
    samples = np.random.default_rng(0).integers(1000, 9000, round(duration_s * RATE_HZ))
    return samples.astype(np.int16)


def quiet(duration_s: float, level: int = 20) -> Samples:
    return np.full(round(duration_s * RATE_HZ), level, np.int16)


def joined(pieces: list[Samples], chunk_samples: int = 7680) -> Samples:
    joiner = Joiner(RATE_HZ)
    out = []
    for number, piece in enumerate(pieces):
        out += [joiner.add(piece[at : at + chunk_samples]) for at in range(0, len(piece), chunk_samples)]
        out.append(joiner.end() if number == len(pieces) - 1 else joiner.end_piece())
    return np.concatenate(out)


def pauses_s(samples: Samples) -> list[float]:
    """Durations of the runs of quiet samples between sounds."""
    loud = np.flatnonzero(np.abs(samples) > 100)
    gaps = np.diff(loud)
    return [(gap - 1) / RATE_HZ for gap in gaps[gaps > 1]]


@pytest.mark.parametrize("chunk_samples", [480, 7680, 10**6])
@pytest.mark.parametrize(
    ("before_s", "after_s"), [(2.0, 1.0), (0.4, 0.0), (0.0, 0.5), (0.0, 0.0), (0.1, 0.05)]
)
def test_every_pause_is_heard_and_short(before_s: float, after_s: float, chunk_samples: int) -> None:
    first = np.concatenate([quiet(0.2), sound(1.0), quiet(before_s)])
    second = np.concatenate([quiet(after_s), sound(1.0), quiet(0.5)])
    samples = joined([first, second, second], chunk_samples)
    assert len(pauses_s(samples)) == 2
    for pause_s in pauses_s(samples):
        assert MIN_PAUSE_S - 1e-4 <= pause_s <= MAX_PAUSE_BEFORE_S + MAX_PAUSE_AFTER_S + 1e-4 < 0.3


def test_nothing_but_silence_is_changed() -> None:
    first, second = sound(1.0), sound(0.7)
    samples = joined([first, second])
    np.testing.assert_array_equal(samples[np.abs(samples) > 100], np.concatenate([first, second]))


def test_pauses_within_a_piece_and_at_both_ends_are_kept() -> None:
    first = np.concatenate([quiet(0.3), sound(0.5), quiet(0.8), sound(0.5)])
    second = np.concatenate([sound(0.5), quiet(0.6)])
    samples = joined([first, second])
    assert pauses_s(samples)[0] == pytest.approx(0.8)
    assert np.flatnonzero(np.abs(samples) > 100)[0] == round(0.3 * RATE_HZ)
    assert len(samples) - 1 - np.flatnonzero(np.abs(samples) > 100)[-1] == round(0.6 * RATE_HZ)


def test_sound_is_passed_on_at_once() -> None:
    joiner = Joiner(RATE_HZ)
    chunk = sound(0.32)
    np.testing.assert_array_equal(joiner.add(chunk), chunk)


def test_a_silent_piece_adds_no_second_pause() -> None:
    samples = joined([sound(0.5), quiet(1.0), sound(0.5)])
    [pause_s] = pauses_s(samples)
    assert pause_s < 0.3
