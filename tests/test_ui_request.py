"""What the page's fields become, and which of them are refused before the engine sees them."""

from pathlib import Path

import numpy as np
import pytest

from backend.contract import Capabilities, InvalidRequest, ReferenceClip, SpeechRequest, Task
from backend.voices import PresetVoice
from tests.fakes import CAPABILITIES, NAMED_SPEAKERS, TEXT_OR_CLIP, VOICE_DESIGN
from ui.request import OWN_CLIP, Fields, build_request

VOICES = [
    PresetVoice("ada", "Ada", "", Path("ada.flac"), "What Ada says.", "CC0"),
    PresetVoice("ben", "Ben", "", Path("ben.flac"), "", "CC0"),
]
LENGTHS = {"ada.flac": 11, "ben.flac": 22, "mine.wav": 33}


def load(path: Path) -> ReferenceClip:
    return ReferenceClip(np.zeros(LENGTHS[path.name], np.float32), 24_000)


def build(fields: Fields, capabilities: Capabilities = CAPABILITIES) -> SpeechRequest:
    return build_request(fields, capabilities.tasks[0], capabilities, VOICES, load)


def test_without_a_choice_the_first_voice_is_cloned() -> None:
    request = build(Fields("Hello"))
    assert request.task is Task.VOICE_CLONE
    assert request.reference
    assert len(request.reference.samples) == 11
    assert (request.x_vector_only, request.transcript) == (True, "")
    assert request.language == "Auto"


def test_in_context_cloning_takes_the_transcript_along() -> None:
    request = build(Fields("Hello", voice="ada", x_vector_only=False))
    assert (request.x_vector_only, request.transcript) == (False, "What Ada says.")


@pytest.mark.parametrize(
    "fields",
    [
        Fields("Hello", voice="ben", x_vector_only=False),
        Fields("Hello", voice=OWN_CLIP, own_clip="mine.wav", transcript="  ", x_vector_only=False),
    ],
)
def test_without_a_transcript_only_the_x_vector_is_used(fields: Fields) -> None:
    assert build(fields).x_vector_only is True


def test_a_model_that_needs_the_transcript_gets_it_whatever_the_hidden_fields_say() -> None:
    fields = Fields("Hello", voice="ada", x_vector_only=True, predictor_temperature=0.9, predictor_top_k=50)
    request = build_request(fields, Task.VOICE_CLONE, TEXT_OR_CLIP, VOICES, load)
    assert (request.x_vector_only, request.transcript) == (False, "What Ada says.")
    assert (request.predictor_temperature, request.predictor_top_k) == (None, None)


def test_text_alone_takes_no_voice() -> None:
    request = build(Fields("Hello", voice="ada", own_clip="mine.wav"), TEXT_OR_CLIP)
    assert request.task is Task.TEXT_ONLY
    assert (request.reference, request.speaker, request.transcript) == (None, None, "")


@pytest.mark.parametrize("voice", [OWN_CLIP, None, ""])
def test_an_own_clip_is_used_when_chosen_or_when_nothing_else_is(voice: str | None) -> None:
    request = build(Fields("Hello", voice=voice, own_clip="mine.wav"))
    assert request.reference
    assert len(request.reference.samples) == 33


def test_a_preset_voice_wins_over_a_forgotten_upload() -> None:
    request = build(Fields("Hello", voice="ben", own_clip="mine.wav"))
    assert request.reference
    assert len(request.reference.samples) == 22


def test_own_clip_without_a_clip_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Upload or record a clip"):
        build(Fields("Hello", voice=OWN_CLIP))


def test_an_unknown_voice_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="no voice named 'zoe'; choose one of ada, ben"):
        build(Fields("Hello", voice="zoe"))


def test_a_named_speaker_needs_no_clip_and_defaults_to_the_first() -> None:
    request = build(Fields("Hello", own_clip="mine.wav"), NAMED_SPEAKERS)
    assert (request.speaker, request.reference) == ("Vivian", None)
    assert build(Fields("Hello", voice="Ryan"), NAMED_SPEAKERS).speaker == "Ryan"


def test_voice_design_passes_the_description() -> None:
    request = build(Fields("Hello", voice="ada", instruction=" A deep voice "), VOICE_DESIGN)
    assert (request.instruction, request.speaker, request.reference) == ("A deep voice", None, None)


def test_max_length_is_given_to_the_engine_in_codec_frames() -> None:
    assert build(Fields("Hello", max_length_s=2.0)).max_frames == 25
    assert build(Fields("Hello", max_length_s=0.01)).max_frames == 2
    assert build(Fields("Hello")).max_frames is None


def test_fields_left_at_the_model_s_own_values_are_no_wishes() -> None:
    request = build(Fields("Hello", max_length_s=160.0, first_chunk_frames=4))
    assert (request.max_frames, request.first_chunk_frames) == (None, None)
    assert build(Fields("Hello", first_chunk_frames=2)).first_chunk_frames == 2


@pytest.mark.parametrize(("text", "seed"), [("", None), (" 7 ", 7), ("0", 0)])
def test_an_empty_seed_is_random(text: str, seed: int | None) -> None:
    assert build(Fields("Hello", seed=text)).seed == seed


@pytest.mark.parametrize("text", ["-1", "1.5", "lucky", "²"])
def test_a_seed_that_is_not_a_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="whole number"):
        build(Fields("Hello", seed=text))


@pytest.mark.parametrize("seed", ["9" * 11, "1" * 5000])
def test_a_seed_too_long_for_the_engine_is_refused_with_a_sentence(seed: str) -> None:
    with pytest.raises(InvalidRequest, match="whole number"):
        build(Fields("Hello", seed=seed))


@pytest.mark.parametrize(("seconds", "frames"), [(0.01, 2), (float("inf"), None)])
def test_a_length_out_of_all_bounds_is_taken_as_the_nearest_one(seconds: float, frames: int | None) -> None:
    assert build(Fields("Hello", max_length_s=seconds)).max_frames == frames
