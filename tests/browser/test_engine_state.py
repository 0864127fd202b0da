"""The page follows the engine: starting, ready, failed, and what the loaded model can do."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, LocatorAssertions, expect

from backend.contract import Phase, SpeechError
from tests.browser.visitor import Visitor
from tests.fakes import CAPABILITIES, NAMED_SPEAKERS, VOICE_DESIGN, FakeSpeechEngine

Visit = Callable[[str], Visitor]


@pytest.fixture(autouse=True)
def defaults(engine: FakeSpeechEngine) -> None:
    engine.__dict__.update(vars(FakeSpeechEngine(NAMED_SPEAKERS, frames=12)))


def open_unready(context: BrowserContext, url: str) -> Visitor:
    page = context.new_page()
    page.goto(url)
    visitor = Visitor(page)
    expect(visitor.speak_button).to_be_visible(timeout=15_000)
    return visitor


def chip(visitor: Visitor) -> LocatorAssertions:
    return expect(visitor.frame.locator("#engine-chip .text"))


def test_a_page_opened_while_loading_becomes_ready_by_itself(
    engine: FakeSpeechEngine, url: str, context: BrowserContext
) -> None:
    engine.phase, engine.detail = Phase.LOADING, "starting the talker"
    visitor = open_unready(context, url)
    chip(visitor).to_have_text("Loading: starting the talker")
    expect(visitor.speak_button).to_be_disabled()
    engine.phase, engine.detail = Phase.WARMING, "first utterance"
    chip(visitor).to_have_text("Warming up: first utterance")
    expect(visitor.speak_button).to_be_disabled()
    engine.phase, engine.detail = Phase.READY, ""
    chip(visitor).to_have_text("Ready · Fake-TTS-CustomVoice · CPU")
    visitor.wait_until_ready()
    assert visitor.frame.get_by_label("Voice").first.input_value() == "Vivian"
    np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)


@pytest.mark.parametrize(("most", "shown"), [(25, True), (0, False)])
def test_the_first_chunk_is_offered_only_where_it_can_be_chosen(
    engine: FakeSpeechEngine, url: str, visit: Visit, most: int, shown: bool
) -> None:
    engine.capabilities_when_ready = replace(NAMED_SPEAKERS, max_first_chunk_frames=most)
    visitor = visit(url)
    visitor.frame.get_by_text("Advanced").click()
    expect(visitor.frame.get_by_label("Top-k", exact=True)).to_be_visible()
    expect(visitor.frame.get_by_label("First chunk (frames)")).to_be_visible(visible=shown)
    np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)


def test_an_engine_that_fails_to_start_says_why(
    engine: FakeSpeechEngine, url: str, context: BrowserContext
) -> None:
    engine.phase, engine.detail = Phase.LOADING, ""
    visitor = open_unready(context, url)
    engine.phase, engine.detail = Phase.FAILED, "there is no checkpoint at /nowhere"
    chip(visitor).to_have_text("Failed: there is no checkpoint at /nowhere")
    expect(visitor.speak_button).to_be_disabled()


def test_an_engine_that_fails_during_a_run_ends_it_with_a_sentence(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.stall_after_chunks = 1  # nothing more would ever come
    visitor = visit(url)
    visitor.speak()
    visitor.wait_for_sound()
    engine.phase, engine.detail = Phase.FAILED, "the talker's process was killed"
    expect(visitor.status).to_have_text(
        "The speech engine has failed (the talker's process was killed); restart the app."
    )
    chip(visitor).to_have_text("Failed: the talker's process was killed")
    expect(visitor.speak_button).to_be_disabled()
    expect(visitor.stop_button).to_be_disabled()
    assert engine.runs[-1].closed


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (SpeechError("The talker stage has died."), "The talker stage has died."),
        (ZeroDivisionError("secret"), "Something went wrong on the server; its log has the details."),
    ],
)
def test_a_run_that_fails_midway_leaves_the_page_usable(
    failure: Exception, sentence: str, engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.frames, engine.fail_after_chunks, engine.failure = 40, 2, failure
    visitor = visit(url)
    visitor.speak()
    expect(visitor.status).to_have_text(sentence)
    expect(visitor.speak_button).to_be_enabled()
    expect(visitor.stop_button).to_be_disabled()
    made = engine.runs[-1].pcm
    clip = visitor.downloaded_wav()
    np.testing.assert_array_equal(clip, made[: len(clip)])
    assert 0 < len(clip) < len(made)
    engine.fail_after_chunks = None
    np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)


def test_a_refused_request_shows_the_engine_s_sentence(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.type("   ")
    visitor.speak()
    expect(visitor.status).to_have_text("There is no text to say.")
    visitor.type("x" * 20_000)
    visitor.speak()
    expect(visitor.status).to_have_text("The text has 20000 characters; the limit is 600.")
    expect(visitor.speak_button).to_be_enabled()


@pytest.mark.parametrize("text", ["👩‍👩‍👧 😀 🇩🇪", "tab\tbell\x07 null-ish\x01", "שלום עולם, مرحبا بالعالم"])
def test_unusual_text_reaches_the_engine_unchanged(
    text: str, engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.type(text)
    visitor.listen()
    assert engine.requests[-1].text == text


def test_two_tabs_speak_at_once(
    engine: FakeSpeechEngine, url: str, visit: Visit, context: BrowserContext
) -> None:
    engine.frames = 25
    first, second = visit(url), visit(url)
    first.speak()
    second.speak()
    first.wait_until_done()
    second.wait_until_done()
    heard = {first.figure("seed"): first.heard(), second.figure("seed"): second.heard()}
    assert len(heard) == len(engine.runs) == 2
    for run in engine.runs:
        # A busy machine may leave a gap; what is heard is this tab's audio, whole and in order.
        samples = heard[str(run.seed)]
        np.testing.assert_array_equal(samples[samples != 0], run.pcm)


def test_a_waiting_run_says_how_many_are_ahead_and_then_plays(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.max_running = 0
    first, second = visit(url), visit(url)
    first.speak()
    expect(first.status).to_have_text("Waiting: 1 ahead of you")
    second.speak()
    expect(second.status).to_have_text("Waiting: 2 ahead of you")
    engine.max_running = 1
    second.wait_until_done()
    np.testing.assert_array_equal(second.heard(), engine.runs[1].pcm)
    assert float(second.figure("queue").removesuffix(" s")) > 0.3


def test_a_full_queue_is_refused_with_a_sentence(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    engine.max_running = engine.max_waiting = 0
    visitor = visit(url)
    visitor.speak()
    expect(visitor.status).to_have_text("Too many requests are waiting; try again in 5 s.")
    expect(visitor.speak_button).to_be_enabled()


def test_speech_cut_off_at_the_limit_is_said_plainly(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.frame.get_by_role("button", name="Advanced").click()
    visitor.frame.get_by_label("Max length (s)").fill("0.4")
    visitor.listen()
    assert engine.requests[-1].max_frames == 5
    assert "cut off at the length limit" in visitor.figure("note")


def test_a_model_with_named_speakers_offers_them_and_an_instruction(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.frame.locator("#voice input").click()
    options = visitor.frame.get_by_role("option")
    assert [text.strip("✓ \n") for text in options.all_inner_texts()] == ["Vivian", "Ryan"]
    visitor.frame.get_by_role("option", name="Ryan").click()
    visitor.frame.locator("#instruction textarea").fill("Whispering")
    expect(visitor.frame.locator("#own-clip")).to_have_count(0)
    visitor.listen()
    request = engine.requests[-1]
    assert (request.task, request.speaker, request.instruction) == ("CustomVoice", "Ryan", "Whispering")


def test_a_voice_design_model_asks_for_a_description_only(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.capabilities_when_ready = VOICE_DESIGN
    visitor = visit(url)
    expect(visitor.frame.locator("#voice")).to_have_count(0)
    visitor.frame.get_by_label("Describe the voice").fill("A calm, low voice")
    visitor.listen()
    request = engine.requests[-1]
    assert (request.task, request.speaker, request.instruction) == ("VoiceDesign", None, "A calm, low voice")


def test_a_cloning_model_hides_the_instruction_it_cannot_follow(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.capabilities_when_ready = CAPABILITIES
    visitor = visit(url)
    expect(visitor.frame.locator("#own-clip")).to_be_visible()
    expect(visitor.frame.locator("#instruction")).to_have_count(0)


def test_untrained_weights_are_announced(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    note = "The weights are random, so this is noise and not speech."
    engine.capabilities_when_ready = replace(NAMED_SPEAKERS, notice=note)
    expect(visit(url).frame.locator("#notice")).to_have_text(note)
    engine.capabilities_when_ready = NAMED_SPEAKERS
    expect(visit(url).frame.locator("#notice")).to_have_count(0)
