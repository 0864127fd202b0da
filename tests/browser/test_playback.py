"""Streamed speech is heard without gaps, and is what the downloaded file holds."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.browser.visitor import Visitor, gaps
from tests.fakes import NAMED_SPEAKERS, SAMPLES_PER_FRAME, FakeSpeechEngine

Visit = Callable[[str], Visitor]


@pytest.fixture(autouse=True)
def defaults(engine: FakeSpeechEngine) -> None:
    engine.__dict__.update(vars(FakeSpeechEngine(NAMED_SPEAKERS)))


def test_played_samples_equal_the_engine_s_and_the_downloaded_file_s(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    heard = visitor.listen()
    assert len(heard) == 40 * SAMPLES_PER_FRAME
    np.testing.assert_array_equal(heard, engine.runs[-1].pcm)
    np.testing.assert_array_equal(visitor.downloaded_wav(), heard)


@pytest.mark.parametrize("rtf", [0.5, 0.75])
def test_faster_than_real_time_never_runs_dry(
    rtf: float, engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.rtf = engine.known_rtf = rtf
    engine.frames = 60
    visitor = visit(url)
    heard = visitor.listen()
    assert gaps(heard) == 0
    assert visitor.figure("underruns") == "0"
    np.testing.assert_array_equal(heard, engine.runs[-1].pcm)


def test_slower_than_real_time_buffers_instead_of_running_dry(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.rtf = engine.known_rtf = 1.3
    engine.frames = None
    visitor = visit(url)
    visitor.type("Its length tells how long it takes.")
    heard = visitor.listen()
    assert gaps(heard) == 0
    np.testing.assert_array_equal(heard, engine.runs[-1].pcm)


def test_a_sudden_slowdown_is_one_gap_not_a_stutter(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    engine.rtf, engine.known_rtf, engine.frames = 1.2, 0.1, 45
    visitor = visit(url)
    heard = visitor.listen()
    assert 1 <= gaps(heard) <= 2
    assert visitor.figure("underruns").startswith(str(gaps(heard)))
    np.testing.assert_array_equal(heard[heard != 0], engine.runs[-1].pcm)


def test_ten_runs_in_a_row_all_play(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    engine.frames = 6
    visitor = visit(url)
    for _ in range(10):
        heard = visitor.listen()
        np.testing.assert_array_equal(heard, engine.runs[-1].pcm)
    assert len({run.seed for run in engine.runs[-10:]}) == 10


def test_a_clip_of_one_chunk_plays(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    engine.frames = 3
    engine.known_rtf = 3.0  # asks for more buffer than there will ever be
    visitor = visit(url)
    np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)
    assert visitor.figure("chunks") == "1"


def test_figures_after_a_run(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    engine.ttfa_s = 0.3
    visitor = visit(url)
    clicked_at = visitor.speak()
    visitor.wait_until_done()
    first_sound_ms = visitor.frame.evaluate("audioTap.firstSoundAt()") - clicked_at
    audible_ms = int(visitor.figure("audible").removesuffix(" ms"))
    engine_ms = int(visitor.figure("ttfa").removesuffix(" ms"))
    assert abs(audible_ms - first_sound_ms) < 60
    assert 300 <= engine_ms < audible_ms
    rtf, speed = visitor.figure("rtf").split(" ", 1)
    assert 0.3 <= float(rtf) < 0.6
    assert speed == f"({1 / engine.runs[-1].report.rtf:.1f}x real time)"
    assert visitor.figure("audio") == "3.20 s"
    assert visitor.figure("chunks") == "5"
    assert visitor.figure("underruns") == "0"
    assert visitor.figure("mode") == "eager"
    assert visitor.figure("seed") == str(engine.runs[-1].seed)


def test_streaming_off_plays_one_clip(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    visitor = visit(url)
    visitor.frame.get_by_label("Streaming").uncheck()
    heard = visitor.listen()
    assert engine.requests[-1].stream is False
    np.testing.assert_array_equal(heard, engine.runs[-1].pcm)
    np.testing.assert_array_equal(visitor.downloaded_wav(), heard)
    assert visitor.figure("chunks") == "1"
