"""The start buffer, against a simulated player: does it run dry, and does it wait longer than it must?"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from backend.contract import AudioChunk
from ui.start_buffer import DEFAULT_RTF, JITTER_S, MAX_BUFFER_S, StartBuffer, buffer_needed, chunk_sizes

FRAME_S = 0.08
RAMP = (4, 4, 8, 16, 25)


def chunk(frames: int, index: int, elapsed_s: float) -> AudioChunk:
    return AudioChunk(np.zeros(frames * 1920, np.int16), 24_000, index, elapsed_s)


def simulate(
    rtf: float, frames: int, schedule: Sequence[int] = RAMP, recent_rtf: float | None = None
) -> tuple[float, int]:
    """Plays a run made at `rtf`; returns (seconds from the first chunk to the first sound, underruns)."""
    buffer = StartBuffer(schedule, FRAME_S, frames * FRAME_S, recent_rtf)
    arrivals: list[tuple[float, float]] = []  # (time, seconds of audio)
    starts: list[float] = []
    made = 0
    for index, size in enumerate(chunk_sizes(schedule)):
        size = min(size, frames - made)
        if not size:
            break
        made += size
        arrivals.append((rtf * made * FRAME_S, size * FRAME_S))
        hold_s = buffer.add(chunk(size, index, arrivals[-1][0]))
        held_s = sum(audio_s for _, audio_s in arrivals)
        starts.append(arrivals[-1][0] + max(0.0, hold_s - held_s))
    # The latest chunk's hold counts, until playback begins; the end releases it.
    began = next(
        (
            start
            for start, following in zip(starts, [*arrivals[1:], None], strict=True)
            if following is None or start <= following[0]
        ),
    )
    began = min(began, max(arrivals[-1][0], 0.0))
    played_until = began
    underruns = 0
    for time_s, audio_s in arrivals:
        if time_s > played_until + 1e-9 and time_s > began:
            underruns += 1
            played_until = time_s
        played_until += audio_s
    return began - arrivals[0][0], underruns


def test_buffer_needed_is_the_worst_shortfall_of_any_later_chunk() -> None:
    assert buffer_needed([4, 8], rtf=0.5) == pytest.approx(max(0.5 * 4, 0.5 * 12 - 4))
    assert buffer_needed([4, 4, 25], rtf=0.8) == pytest.approx(0.8 * 33 - 8)
    assert buffer_needed([], rtf=3.0) == 0


def test_buffer_needed_at_twice_real_time_is_half_the_next_chunk_when_chunks_are_equal() -> None:
    assert buffer_needed([10] * 50, rtf=0.5) == pytest.approx(5)


def test_buffer_needed_above_real_time_grows_with_what_is_left() -> None:
    assert buffer_needed([10] * 10, rtf=1.5) == pytest.approx(1.5 * 100 - 90)


def test_the_last_schedule_entry_repeats_and_the_first_can_be_replaced() -> None:
    assert list(islice(chunk_sizes(RAMP), 7)) == [4, 4, 8, 16, 25, 25, 25]
    assert list(islice(chunk_sizes(RAMP, first=1), 3)) == [1, 4, 8]


@pytest.mark.parametrize("rtf", [0.1, 0.3, 0.5, 0.7, 0.79, 0.9])
@pytest.mark.parametrize("frames", [3, 10, 60, 400])
@pytest.mark.parametrize("schedule", [RAMP, (1, 25), (25,), (4, 25)])
def test_faster_than_real_time_never_runs_dry(rtf: float, frames: int, schedule: Sequence[int]) -> None:
    assert simulate(rtf, frames, schedule, recent_rtf=rtf)[1] == 0


@pytest.mark.parametrize("rtf", [1.1, 1.5])
def test_slower_than_real_time_does_not_run_dry_while_the_buffer_may_hold_enough(rtf: float) -> None:
    assert simulate(rtf, 100, recent_rtf=rtf)[1] == 0


def test_a_fast_engine_starts_with_the_first_chunk() -> None:
    assert simulate(0.3, 100, recent_rtf=0.3)[0] == 0


def test_waiting_is_no_longer_than_the_buffer_asks_for() -> None:
    waited, underruns = simulate(0.79, 400, recent_rtf=0.79)
    assert underruns == 0
    assert 0.4 < waited < 1.2  # the next chunk alone would be 1.6 s away


def test_a_run_slower_than_the_last_ones_asks_for_more_as_it_shows() -> None:
    buffer = StartBuffer(RAMP, FRAME_S, 30.0, recent_rtf=0.2)
    buffer.add(chunk(4, 0, 0.3))
    assert buffer.rtf == 0.2
    later = buffer.add(chunk(4, 1, 0.3 + 0.9 * 4 * FRAME_S))
    assert buffer.rtf == pytest.approx(0.9)
    assert later > 1.0


def test_without_any_measurement_a_slow_engine_is_assumed_until_the_run_is_measured() -> None:
    buffer = StartBuffer(RAMP, FRAME_S, 30.0)
    buffer.add(chunk(4, 0, 0.3))
    assert buffer.rtf == DEFAULT_RTF
    buffer.add(chunk(4, 1, 0.3 + 0.1 * 4 * FRAME_S))
    assert buffer.rtf == pytest.approx(0.1)


def test_the_buffer_is_capped() -> None:
    buffer = StartBuffer((25,), FRAME_S, 600.0, recent_rtf=4.0)
    assert buffer.add(chunk(25, 0, 1.0)) == MAX_BUFFER_S


def test_speech_longer_than_expected_still_holds_enough_for_one_more_chunk() -> None:
    buffer = StartBuffer((25,), FRAME_S, 1.0, recent_rtf=0.5)
    assert buffer.add(chunk(25, 0, 1.0)) == pytest.approx(0.5 * 1.1 * 25 * FRAME_S + JITTER_S)
