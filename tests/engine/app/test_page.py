"""The page in Chromium on the real engine: Speak, listen, stop, clone, and the death of a stage."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import expect

from backend.voices import load_preset_voices
from tests.browser.visitor import Visitor
from tests.engine.app.running import App

pytestmark = pytest.mark.browser

Visit = Callable[[str], Visitor]
VOICES = load_preset_voices()
LONG_TEXT = "This goes on for a while. " * 40


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    app = App(tmp_path_factory.mktemp("app"))
    try:
        app.wait_for("ready")
        yield app
    finally:
        app.kill()


@pytest.fixture
def visitor(app: App, visit: Visit) -> Iterator[Visitor]:
    visitor = visit(app.url)
    yield visitor
    visitor.page.close()


def choose_voice(visitor: Visitor, label: str) -> None:
    visitor.frame.locator("#voice input").click()
    visitor.frame.get_by_role("option", name=label).click()


def sounding(samples: NDArray[np.int16]) -> NDArray[np.int16]:
    """From the first sample that is not zero to the last."""
    loud = np.flatnonzero(samples)
    return samples[loud[0] : loud[-1] + 1]


def assert_heard_what_can_be_downloaded(visitor: Visitor, heard: NDArray[np.int16]) -> None:
    downloaded = visitor.downloaded_wav()
    assert np.abs(downloaded.astype(int)).max() > 300
    # Equal samples also mean that no gap was put between them.
    np.testing.assert_array_equal(heard, sounding(downloaded))
    assert visitor.figure("underruns") == "0"
    assert float(visitor.figure("audio").removesuffix(" s")) == pytest.approx(
        len(downloaded) / 24_000, abs=0.01
    )


def seconds_until_idle(app: App, limit_s: float = 5) -> float:
    began = time.monotonic()
    while (answer := app.health()) is None or answer[1]["running"] + answer[1]["queued"]:
        assert time.monotonic() - began < limit_s
        time.sleep(0.02)
    return time.monotonic() - began


def test_a_preset_voice_is_heard_without_a_gap_twice(app: App, visitor: Visitor) -> None:
    choose_voice(visitor, VOICES[1].label)
    visitor.type("Good morning. This is the real engine, heard in a real browser.")
    first = visitor.listen(timeout_s=60)
    assert_heard_what_can_be_downloaded(visitor, first)
    assert int(visitor.figure("chunks")) > 2
    assert visitor.figure("mode") == "eager"
    second = visitor.listen(timeout_s=60)
    assert_heard_what_can_be_downloaded(visitor, second)
    assert not np.array_equal(first, second)
    assert app.health() == (200, {"phase": "ready", "detail": "ready", "running": 0, "queued": 0})


def test_stop_silences_the_page_and_frees_the_engine(app: App, visitor: Visitor) -> None:
    visitor.type(LONG_TEXT)
    visitor.speak()
    visitor.wait_for_sound()
    visitor.stop_button.click()
    assert seconds_until_idle(app) < 0.5
    expect(visitor.status).to_contain_text("Stopped")
    visitor.page.wait_for_timeout(300)
    heard = len(visitor.heard())
    visitor.page.wait_for_timeout(700)
    assert len(visitor.heard()) == heard
    visitor.type("And again.")
    assert_heard_what_can_be_downloaded(visitor, visitor.listen(timeout_s=60))


def test_closing_the_tab_frees_the_engine(app: App, visitor: Visitor) -> None:
    visitor.type(LONG_TEXT)
    visitor.speak()
    visitor.wait_for_sound()
    visitor.page.close()
    assert seconds_until_idle(app) < 3


@pytest.mark.parametrize("transcript", ["", VOICES[2].transcript], ids=["x-vector", "in context"])
def test_an_uploaded_clip_is_cloned(visitor: Visitor, transcript: str) -> None:
    choose_voice(visitor, "My own clip")
    visitor.frame.locator("#own-clip input[type=file]").set_input_files(Path(VOICES[2].audio_path))
    expect(visitor.frame.locator("#clip-note")).to_contain_text("good to use")
    if transcript:
        visitor.frame.get_by_label("Transcript of the clip").press_sequentially(transcript)
        expect(visitor.frame.get_by_label("x-vector only")).not_to_be_checked()
    visitor.type("Spoken in a voice of my own.")
    assert_heard_what_can_be_downloaded(visitor, visitor.listen(timeout_s=60))


def test_text_that_is_too_long_is_refused_with_the_limit(app: App, visitor: Visitor) -> None:
    visitor.type("x" * 20_000)
    visitor.speak()
    expect(visitor.status).to_have_text("The text has 20,000 characters; shorten it to 10,000.")
    answer = app.health()
    assert answer is not None
    assert answer[0] == 200


def test_the_death_of_a_stage_is_told_and_the_app_still_ends_cleanly(app: App, visitor: Visitor) -> None:
    """The last of this app's tests."""
    visitor.type(LONG_TEXT)
    visitor.speak()
    visitor.wait_for_sound()
    stage, _other = app.stage_processes()
    stage.kill()
    died = re.compile(r"the (talker|decoder)'s process has died")
    expect(visitor.status).to_contain_text(died, timeout=10_000)
    expect(visitor.frame.locator("#engine-chip .text")).to_contain_text(died, timeout=10_000)
    told = app.health()
    assert told is not None
    assert (told[0], told[1]["phase"]) == (503, "failed")
    assert died.fullmatch(told[1]["detail"])
    assert (told[1]["running"], told[1]["queued"]) == (0, 0)
    code, seconds = app.stop(signal.SIGTERM)
    assert (code, seconds < 10) == (0, True), f"{code} after {seconds:.1f} s"
    app.assert_nothing_left()
