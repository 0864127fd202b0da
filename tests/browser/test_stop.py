"""Stop ends the sound at once and frees the engine; so does closing the tab."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.visitor import Visitor
from tests.fakes import NAMED_SPEAKERS, FakeSpeechEngine

Visit = Callable[[str], Visitor]


@pytest.fixture(autouse=True)
def long_runs(engine: FakeSpeechEngine) -> None:
    engine.__dict__.update(vars(FakeSpeechEngine(NAMED_SPEAKERS, frames=250, rtf=0.5, known_rtf=0.5)))


def seconds_until_idle(engine: FakeSpeechEngine, limit_s: float = 5.0) -> float:
    began = time.monotonic()
    while engine.status.running + engine.status.queued:
        assert time.monotonic() - began < limit_s, "the engine is still running"
        time.sleep(0.01)
    return time.monotonic() - began


def press_stop(visitor: Visitor) -> float:
    """Milliseconds of the browser's clock at which Stop was pressed."""
    pressed_at: float = visitor.frame.evaluate(
        "() => { const now = Date.now(); document.querySelector('#stop-button').click(); return now; }"
    )
    return pressed_at


def test_stop_silences_the_page_and_frees_the_engine_within_half_a_second(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.speak()
    visitor.wait_for_sound()
    visitor.page.wait_for_timeout(700)
    assert engine.status.running == 1
    pressed_at = press_stop(visitor)
    assert seconds_until_idle(engine) < 0.5
    expect(visitor.status).to_have_text("Stopped")
    visitor.page.wait_for_timeout(800)
    assert visitor.frame.evaluate("audioTap.lastSoundAt()") - pressed_at < 300
    assert engine.runs[-1].closed


def test_what_was_made_before_stop_is_offered_as_a_clip(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.speak()
    visitor.wait_for_sound()
    visitor.page.wait_for_timeout(500)
    visitor.stop_button.click()
    expect(visitor.speak_button).to_be_enabled()
    clip = visitor.downloaded_wav()
    assert 0 < len(clip) < len(engine.runs[-1].pcm)
    np.testing.assert_array_equal(clip, engine.runs[-1].pcm[: len(clip)])


def test_stop_before_the_first_chunk(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    engine.ttfa_s = 30.0
    visitor = visit(url)
    visitor.speak()
    expect(visitor.stop_button).to_be_enabled()
    visitor.page.wait_for_timeout(300)
    visitor.stop_button.click()
    assert seconds_until_idle(engine) < 0.5
    expect(visitor.status).to_have_text("Stopped")
    expect(visitor.speak_button).to_be_enabled()
    expect(visitor.stop_button).to_be_disabled()
    assert not visitor.heard().size


def test_stop_in_the_same_moment_as_speak(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    visitor = visit(url)
    visitor.frame.evaluate(
        "() => { document.querySelector('#speak-button').click();"
        " setTimeout(() => document.querySelector('#stop-button').click(), 30); }"
    )
    expect(visitor.status).to_have_text("Stopped")
    expect(visitor.speak_button).to_be_enabled()
    seconds_until_idle(engine, 1.0)
    visitor.page.wait_for_timeout(500)
    assert engine.status.running == 0


def test_a_stopped_run_s_late_audio_is_not_heard_in_the_next_run(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.speak()
    visitor.wait_for_sound()
    visitor.stop_button.click()
    expect(visitor.speak_button).to_be_enabled()
    engine.frames = 12
    heard = visitor.listen()
    np.testing.assert_array_equal(heard, engine.runs[-1].pcm)


def test_stop_ends_playback_that_outlasts_the_run(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    engine.rtf, engine.frames = 0.02, 100
    visitor = visit(url)
    visitor.speak()
    visitor.wait_for_sound()
    expect(visitor.speak_button).to_be_enabled()
    assert engine.status.running == 0
    press_stop(visitor)
    expect(visitor.status).to_have_text("Stopped")
    visitor.page.wait_for_timeout(500)
    assert len(visitor.heard()) < len(engine.runs[-1].pcm) / 2
    expect(visitor.stop_button).to_be_disabled()


def test_closing_the_tab_aborts_the_run_within_two_seconds(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.ttfa_s = 60.0  # no chunk comes to notice it by
    visitor = visit(url)
    visitor.speak()
    visitor.page.wait_for_timeout(1000)
    assert engine.status.running == 1
    visitor.page.close()
    assert seconds_until_idle(engine) < 2.0
    assert engine.runs[-1].closed


def test_reloading_the_page_aborts_the_run_and_speaks_again(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.speak()
    visitor.wait_for_sound()
    visitor.page.reload()
    assert seconds_until_idle(engine) < 2.0
    visitor.wait_until_ready()
    engine.frames = 12
    np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)
