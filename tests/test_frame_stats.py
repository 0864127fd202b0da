"""A run's frame figures, from the talker's process to the application's."""

from pathlib import Path

import pytest

from backend.frame_stats import SLOTS, FrameStatsReader, FrameStatsWriter
from backend.frame_timer import FrameTimer


@pytest.fixture
def pair(tmp_path: Path) -> tuple[FrameStatsReader, FrameStatsWriter]:
    path = tmp_path / "frames"
    return FrameStatsReader(path), FrameStatsWriter(str(path))


def test_a_run_s_frames_are_counted_by_how_they_were_made(
    pair: tuple[FrameStatsReader, FrameStatsWriter],
) -> None:
    reader, writer = pair
    for by_graph, fallback in ((True, None), (False, "too large"), (True, None), (False, None)):
        writer.frame("mine", by_graph, fallback)
        writer.frame("other", False, None)
    stats = reader.of("mine")
    assert stats is not None
    assert (stats.frames, stats.graph_frames, stats.fallbacks) == (4, 2, 1)
    assert stats.fallback_reason == "too large"
    assert stats.predictor_ms is None


def test_times_are_means_over_what_was_timed(pair: tuple[FrameStatsReader, FrameStatsWriter]) -> None:
    reader, writer = pair
    writer.predictor_time(["mine", "other"], 4.0)
    writer.predictor_time(["mine"], 2.0)
    writer.interval(["mine"], 10.0)
    stats = reader.of("mine")
    assert stats is not None
    assert (stats.predictor_ms, stats.talker_ms) == (3.0, 7.0)


def test_an_unknown_run_has_no_figures(pair: tuple[FrameStatsReader, FrameStatsWriter]) -> None:
    assert pair[0].of("nobody") is None


def test_old_runs_give_their_place_to_new_ones(pair: tuple[FrameStatsReader, FrameStatsWriter]) -> None:
    reader, writer = pair
    for i in range(SLOTS + 3):
        writer.frame(f"run {i}", True, None)
    assert reader.of("run 2") is None
    oldest, newest = reader.of("run 3"), reader.of(f"run {SLOTS + 2}")
    assert oldest is not None
    assert newest is not None
    assert oldest.frames == newest.frames == 1


def test_the_time_between_frames_counts_for_runs_that_were_in_both(
    pair: tuple[FrameStatsReader, FrameStatsWriter],
) -> None:
    reader, writer = pair
    timer = FrameTimer(writer, on_gpu=False)
    for frames in ((("early", 0), ("late", 0)), (("late", 1),)):
        with timer.frame(frames):
            pass
    early, late = reader.of("early"), reader.of("late")
    assert early is not None
    assert late is not None
    assert early.talker_ms is None
    assert late.talker_ms is not None
    assert late.talker_ms >= 0


def test_the_gap_between_pieces_of_a_long_text_is_no_frame_s_time(
    pair: tuple[FrameStatsReader, FrameStatsWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pair
    timer = FrameTimer(writer, on_gpu=False)
    now_s = 0.0
    monkeypatch.setattr("backend.frame_timer.time.perf_counter", lambda: now_s)
    # Two frames 20 ms apart, a second until the next piece's first, and two more.
    for now_s, number in ((0.0, 0), (0.02, 1), (1.02, 0), (1.04, 1)):  # noqa: B007
        with timer.frame((("mine", number),)):
            pass
    stats = reader.of("mine")
    assert stats is not None
    assert stats.talker_ms == pytest.approx(20)
    assert stats.predictor_ms == 0
