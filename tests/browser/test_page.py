"""The form itself: typing, choosing a voice, small screens, keyboard and screen readers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from backend.reference_audio import load_reference_clip
from backend.voices import load_preset_voices
from tests.browser.visitor import Visitor
from tests.fakes import CAPABILITIES, TEXT_OR_CLIP, FakeSpeechEngine, served

Visit = Callable[[str], Visitor]

VOICES = load_preset_voices()


@pytest.fixture(scope="module")
def engine() -> FakeSpeechEngine:
    return FakeSpeechEngine(CAPABILITIES)


@pytest.fixture(scope="module")
def url(engine: FakeSpeechEngine) -> Iterator[str]:
    with served(engine, VOICES, load_clip=load_reference_clip) as url:
        yield url


@pytest.fixture(autouse=True)
def defaults(engine: FakeSpeechEngine) -> None:
    engine.__dict__.update(vars(FakeSpeechEngine(CAPABILITIES, frames=12)))


def choose_voice(visitor: Visitor, label: str) -> None:
    visitor.frame.locator("#voice input").click()
    visitor.frame.get_by_role("option", name=label).click()


@pytest.mark.parametrize("key", ["Control+Enter", "Meta+Enter"])
def test_ctrl_enter_in_the_text_box_speaks(
    key: str, engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.type("Spoken from the keyboard.")
    visitor.frame.locator("#speech-text textarea").press(key)
    visitor.wait_until_done()
    assert engine.requests[-1].text == "Spoken from the keyboard."
    np.testing.assert_array_equal(visitor.heard(), engine.runs[-1].pcm)


def test_the_meter_counts_while_typing_and_warns_past_the_limit(url: str, visit: Visit) -> None:
    visitor = visit(url)
    meter = visitor.frame.locator("#text-meter output")
    visitor.type("x" * 28 + "👋")
    expect(meter).to_have_text("29 / 600 characters · about 2 s of speech")
    expect(meter).to_have_attribute("data-over", "false")
    visitor.type("x" * 601)
    expect(meter).to_have_attribute("data-over", "true")
    visitor.type("")
    expect(meter).to_have_text("0 / 600 characters")


def test_an_example_fills_the_text_box(url: str, visit: Visit) -> None:
    visitor = visit(url)
    visitor.frame.get_by_text("Could you read that back").first.click()
    box = visitor.frame.locator("#speech-text textarea")
    expect(box).to_have_value(re.compile("^Could you read that back to me once more"))
    expect(visitor.frame.locator("#text-meter output")).to_contain_text("68 / 600")


def test_a_preset_voice_can_be_heard_and_is_cloned(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    visitor = visit(url)
    choose_voice(visitor, VOICES[1].label)
    audio = visitor.frame.locator("#preset-audio audio")
    expect(audio).to_have_attribute("src", re.compile(VOICES[1].audio_path.stem), timeout=8000)
    visitor.frame.get_by_role("button", name="Listen").click()
    visitor.frame.wait_for_function("document.querySelector('#preset-audio audio').currentTime > 0.1")
    visitor.listen()
    assert audio.evaluate("audio => audio.paused"), "Speak silences the preview"
    request, clip = engine.requests[-1], load_reference_clip(VOICES[1].audio_path)
    assert request.reference
    np.testing.assert_array_equal(request.reference.samples, clip.samples)
    assert (request.x_vector_only, request.transcript) == (True, "")


def test_a_model_with_two_tasks_offers_both_and_hides_what_it_cannot_do(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    engine.capabilities_when_ready = TEXT_OR_CLIP
    visitor = visit(url)
    page = visitor.frame
    page.get_by_text("Advanced").click()
    expect(page.get_by_label("Top-k", exact=True)).to_be_visible()
    for hidden in ("Language", "Predictor top-k", "x-vector only", "Instruction"):
        expect(page.get_by_label(hidden, exact=True)).to_have_count(0)
    expect(page.locator("#voice")).to_have_count(0)
    visitor.listen()
    assert (engine.requests[-1].task, engine.requests[-1].reference) == ("TextOnly", None)
    meter = page.locator("#text-meter output")
    expect(meter).to_contain_text("/ 600 characters")
    page.get_by_label("Clone a voice").check()
    expect(page.locator("#voice")).to_be_visible()
    expect(meter).to_contain_text("/ 10000 characters")
    expect(page.get_by_label("x-vector only")).to_have_count(0)
    visitor.listen()
    request = engine.requests[-1]
    assert request.task == "Base"
    assert request.reference is not None
    assert (request.x_vector_only, bool(request.transcript)) == (False, True)


def test_x_vector_only_off_uses_the_preset_s_transcript(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    visitor.frame.get_by_label("x-vector only").uncheck()
    visitor.listen()
    request = engine.requests[-1]
    assert (request.x_vector_only, request.transcript) == (False, VOICES[0].transcript)


def test_an_uploaded_clip_with_a_transcript_is_cloned_in_context(
    engine: FakeSpeechEngine, url: str, visit: Visit
) -> None:
    visitor = visit(url)
    choose_voice(visitor, "My own clip")
    visitor.frame.locator("#own-clip input[type=file]").set_input_files(VOICES[2].audio_path)
    expect(visitor.frame.locator("#clip-note")).to_contain_text("good to use")
    x_vector_only = visitor.frame.get_by_label("x-vector only")
    expect(x_vector_only).to_be_checked()
    visitor.frame.get_by_label("Transcript of the clip").press_sequentially("What the clip says")
    expect(x_vector_only).not_to_be_checked()
    visitor.listen()
    request = engine.requests[-1]
    assert request.reference
    np.testing.assert_array_equal(
        request.reference.samples, load_reference_clip(VOICES[2].audio_path).samples
    )
    assert (request.x_vector_only, request.transcript) == (False, "What the clip says")


def test_a_file_that_is_not_audio_is_refused_at_once(
    engine: FakeSpeechEngine, url: str, visit: Visit, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"this is not a recording" * 1000)
    visitor = visit(url)
    choose_voice(visitor, "My own clip")
    visitor.speak()
    expect(visitor.status).to_have_text("Upload or record a clip of the voice, or choose a preset voice.")
    visitor.frame.locator("#own-clip input[type=file]").set_input_files(broken)
    note = visitor.frame.locator("#clip-note")
    expect(note).to_contain_text(re.compile("audio", re.IGNORECASE))
    expect(visitor.speak_button).to_be_enabled()
    visitor.speak()
    expect(visitor.status).to_have_text(note.inner_text().strip())
    assert not engine.requests


def test_the_used_seed_can_be_used_again(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    visitor = visit(url)
    first = visitor.listen()
    visitor.frame.get_by_role("button", name="Use again").click()
    visitor.frame.get_by_role("button", name="Advanced").click()
    seed = str(engine.runs[-1].seed)
    expect(visitor.frame.locator("#seed input, #seed textarea")).to_have_value(seed)
    np.testing.assert_array_equal(visitor.listen(), first)
    assert engine.requests[-1].seed == int(seed)


def test_advanced_settings_reach_the_engine(engine: FakeSpeechEngine, url: str, visit: Visit) -> None:
    visitor = visit(url)
    visitor.frame.get_by_role("button", name="Advanced").click()
    expect(visitor.frame.get_by_label("Temperature", exact=True)).to_have_value("0.9")
    expect(visitor.frame.get_by_label("Predictor top-k")).to_have_value("40")
    visitor.frame.get_by_label("Temperature", exact=True).fill("0.4")
    visitor.frame.get_by_label("Top-k", exact=True).fill("7")
    visitor.frame.get_by_label("Predictor temperature").fill("0.3")
    visitor.frame.get_by_label("First chunk (frames)").fill("2")
    visitor.listen()
    request = engine.requests[-1]
    assert (request.temperature, request.top_k, request.first_chunk_frames) == (0.4, 7, 2)
    assert (request.predictor_temperature, request.predictor_top_k) == (0.3, 40)
    assert visitor.figure("chunks") == "3"  # 2, 4 and the rest of 12


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, url: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(url)
    visitor = Visitor(page)
    visitor.wait_until_ready()
    choose_voice(visitor, "My own clip")
    page.get_by_role("button", name="Advanced").click()
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for element in ("#speak-button", "#stop-button", "#run-panel", "#speech-text", "#own-clip"):
        box = page.locator(element).bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    page.close()


def test_dark_mode_keeps_the_figures_readable(browser: Browser, url: str) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(url)
    Visitor(page).wait_until_ready()
    contrast = page.evaluate(
        """() => {
          const light = (css) => {
            const [r, g, b] = css.match(/[\\d.]+/g).slice(0, 3).map((v) => {
              v /= 255;
              return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const card = document.querySelector('#run-panel .card');
          const back = light(getComputedStyle(card).backgroundColor);
          return ['dt', 'dd'].map((name) => {
            const front = light(getComputedStyle(card.querySelector(name)).color);
            return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
          });
        }"""
    )
    assert min(contrast) > 4.5
    page.close()


def test_every_control_has_a_name_and_the_status_is_announced(url: str, visit: Visit) -> None:
    visitor = visit(url)
    visitor.frame.get_by_role("button", name="Advanced").click()
    choose_voice(visitor, "My own clip")
    unnamed = visitor.frame.evaluate(
        """() => [...document.querySelectorAll('button, input:not([type=file]), textarea, select')]
          .filter((e) => e.checkVisibility())
          .filter((e) => !(e.innerText || e.ariaLabel || e.title || e.labels?.length))
          .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []
    for status in ("#engine-chip [role=status]", '#run-panel [data-field="status"]'):
        expect(visitor.frame.locator(status)).to_have_attribute("aria-live", "polite")
