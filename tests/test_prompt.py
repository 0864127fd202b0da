import base64
import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from backend import prompt
from backend.checkpoint import Variant
from backend.contract import InvalidRequest, ReferenceClip, SpeechRequest, Task
from backend.families.family import ModelInfo, Tokenize
from backend.families.qwen3_prompt import (
    additional_information,
    build_prompt,
    reference_frames,
)
from backend.families.registry import read_model_info
from backend.prompt import MAX_TEXT_CHARS, check_request, clean_text

TinyCheckpoint = Callable[[Variant], Path]
VARIANT_OF_TASK: dict[Task, Variant] = {
    Task.VOICE_CLONE: "base",
    Task.NAMED_SPEAKER: "custom_voice",
    Task.VOICE_DESIGN: "voice_design",
}
# 2.01 s: its last codec frame is a partial one.
CLIP = ReferenceClip(np.sin(np.arange(48_240) / 20).astype(np.float32) / 3, 24_000)


def clip(samples: np.ndarray[Any, Any]) -> ReferenceClip:
    return ReferenceClip(samples.astype(np.float32), 24_000)


CLONE = SpeechRequest("Good morning.", Task.VOICE_CLONE, reference=CLIP, transcript="What the clip says.")
X_VECTOR = replace(CLONE, transcript="", x_vector_only=True)
NAMED = SpeechRequest("Good morning.", Task.NAMED_SPEAKER, speaker="vivian")
DESIGN = SpeechRequest("Good morning.", Task.VOICE_DESIGN, instruction="A calm voice.")
PLAIN = {Task.VOICE_CLONE: CLONE, Task.NAMED_SPEAKER: NAMED, Task.VOICE_DESIGN: DESIGN}


@pytest.fixture
def model(tiny_checkpoint: TinyCheckpoint) -> Callable[[Task], ModelInfo]:
    return lambda task: read_model_info(tiny_checkpoint(VARIANT_OF_TASK[task]))


Models = Callable[[Task], ModelInfo]


def check(request: SpeechRequest, model: Models, max_frames: int = 2048) -> None:
    check_request(request, model(request.task), max_frames, 25)


def refusal(
    request: SpeechRequest, model: ModelInfo, max_frames: int = 2048, max_first_chunk_frames: int = 25
) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request, model, max_frames, max_first_chunk_frames)
    assert str(caught.value).endswith(".")
    return str(caught.value), caught.value.param


def words(text: str) -> list[int]:
    return list(range(len(text.split())))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("  Hello,\n\n world.\t", "Hello, world."),
        ("one\x00two\x1b[31mthree\x7f", "one two [31mthree"),
        ("line\u2028end\u2029", "line end"),
        ("half \ud83d a pair \udc4b", "half a pair"),
        ("cafe\u0301", "caf\u00e9"),
        ("hi 👋🏽 there", "hi 👋🏽 there"),
        ("שלום עולם", "שלום עולם"),
        ("مرحبا \u202bبك\u202c", "مرحبا \u202bبك\u202c"),
        ("你好世界。", "你好世界。"),
        ("\ud800\x00 \n", ""),
    ],
)
def test_text_is_cleaned_to_what_can_be_spoken(text: str, spoken: str) -> None:
    assert clean_text(text) == spoken
    clean_text(text).encode("utf-8")


@pytest.mark.parametrize("text", ["", "   ", "\n\t\x00", "\u200b\u200b", "👋🎉", "?!...", "\ud800", "\u202e"])
def test_nothing_to_speak_is_refused(text: str, model: Models) -> None:
    sentence, param = refusal(replace(X_VECTOR, text=text), model(Task.VOICE_CLONE))
    assert (sentence, param) == ("Type something to speak: there is no letter or digit in the text.", "text")


@pytest.mark.parametrize("text", ["7", "a 👋", "שלום", "你好", "a\ud800"])
def test_anything_with_a_letter_or_digit_is_spoken(text: str, model: Models) -> None:
    check(replace(X_VECTOR, text=text), model)


def test_long_text_is_refused_and_the_limit_named(model: Models) -> None:
    check(replace(X_VECTOR, text="x" * MAX_TEXT_CHARS), model)
    sentence, param = refusal(replace(X_VECTOR, text="x" * 20_000), model(Task.VOICE_CLONE))
    assert (sentence, param) == ("The text has 20,000 characters; shorten it to 10,000.", "text")
    check(replace(X_VECTOR, text=" " * 20_000 + "x"), model)


@pytest.mark.parametrize(
    ("param", "lowest", "highest", "step"),
    [
        ("temperature", 0.0, 2.0, 0.01),
        ("top_k", 1, 2048, 1),
        ("predictor_temperature", 0.0, 2.0, 0.01),
        ("predictor_top_k", 1, 2048, 1),
        ("max_frames", 2, 300, 1),
        ("first_chunk_frames", 1, 25, 1),
        ("seed", 0, 2**31 - 1, 1),
    ],
)
def test_a_number_out_of_range_is_refused_and_the_range_named(
    param: str, lowest: float, highest: float, step: float, model: Models
) -> None:
    for value in (lowest, highest, None):
        check(replace(X_VECTOR, **{param: value}), model, max_frames=300)  # type: ignore[arg-type]
    for value in (lowest - step, highest + step, -(10**9), math.nan, math.inf):
        request = replace(X_VECTOR, **{param: value})  # type: ignore[arg-type]
        sentence, at_fault = refusal(request, model(Task.VOICE_CLONE), max_frames=300)
        assert at_fault == param
        assert f"must be from {lowest} to {highest}, not {value}" in sentence


def test_a_first_chunk_fixed_by_the_stage_configuration_cannot_be_asked_for(model: Models) -> None:
    loaded = model(Task.VOICE_CLONE)
    check_request(X_VECTOR, loaded, 300, 0)
    sentence, param = refusal(replace(X_VECTOR, first_chunk_frames=1), loaded, max_first_chunk_frames=0)
    assert param == "first_chunk_frames"
    assert sentence == "The stage configuration fixes the first chunk; leave its size out."


@pytest.mark.parametrize("loaded", PLAIN)
@pytest.mark.parametrize("asked", PLAIN)
def test_only_the_loaded_checkpoint_s_own_task_is_served(loaded: Task, asked: Task, model: Models) -> None:
    if asked is loaded:
        check_request(PLAIN[asked], model(loaded), 2048, 25)
    else:
        sentence, param = refusal(PLAIN[asked], model(loaded))
        assert param == "task"
        assert sentence.startswith("The loaded checkpoint is made for ")


@pytest.mark.parametrize(
    ("request_", "param", "words_"),
    [
        (replace(CLONE, reference=None), "reference", "give a clip"),
        (replace(CLONE, reference=clip(np.zeros(10))), "reference", "from 1 to 30 s, not 0.0 s"),
        (replace(CLONE, reference=clip(np.zeros(31 * 24_000))), "reference", "from 1 to 30 s, not 31.0 s"),
        (replace(CLONE, reference=clip(np.full(48_000, np.nan))), "reference", "made of numbers"),
        (replace(CLONE, reference=clip(np.zeros((48_000, 2)))), "reference", "mono"),
        (replace(CLONE, transcript=""), "transcript", "what the clip says"),
        (replace(CLONE, transcript=" \n\x00"), "transcript", "what the clip says"),
        (replace(CLONE, transcript="x" * 1001), "transcript", "1,000 characters"),
        (replace(CLONE, instruction="Cheerfully."), "instruction", "takes no instruction"),
        (replace(CLONE, speaker="vivian"), "speaker", "no named speakers"),
        (replace(NAMED, speaker=None), "speaker", "one of serena, vivian"),
        (replace(NAMED, speaker="nobody"), "speaker", "not 'nobody'"),
        (replace(NAMED, instruction="x" * 501), "instruction", "500 characters"),
        (replace(NAMED, reference=CLIP), "reference", "clones no voices"),
        (replace(DESIGN, instruction=""), "instruction", "Describe the voice"),
        (replace(DESIGN, instruction=" \x00"), "instruction", "Describe the voice"),
        (replace(DESIGN, speaker="vivian"), "speaker", "no named speakers"),
        (replace(NAMED, language="Klingon"), "language", "not 'Klingon'"),
        (replace(NAMED, language="english"), "language", "English"),
        (replace(NAMED, language=""), "language", "Auto"),
    ],
)
def test_what_a_task_needs_is_asked_for(
    request_: SpeechRequest, param: str, words_: str, model: Models
) -> None:
    sentence, at_fault = refusal(request_, model(request_.task))
    assert at_fault == param
    assert words_ in sentence


def test_each_task_is_served_with_all_it_takes(model: Models) -> None:
    for request in (
        X_VECTOR,
        replace(CLONE, language="German"),
        replace(NAMED, instruction="Cheerfully.", language="Chinese"),
        replace(DESIGN, language="English"),
    ):
        check(request, model)


def decoded(data_url: str) -> tuple[np.ndarray[Any, Any], int]:
    header, _, data = data_url.partition(",")
    assert header == "data:audio/wav;base64"
    return soundfile.read(io.BytesIO(base64.b64decode(data)), dtype="float32")


def test_the_clip_reaches_the_talker_sample_for_sample() -> None:
    samples, rate = decoded(additional_information(X_VECTOR)["ref_audio"][0])
    assert rate == CLIP.sample_rate_hz
    np.testing.assert_array_equal(samples, CLIP.samples)


def test_only_a_clip_cloned_in_context_is_followed_by_half_a_second_of_silence() -> None:
    samples, _ = decoded(additional_information(CLONE)["ref_audio"][0])
    assert len(samples) == len(CLIP.samples) + 12_000
    np.testing.assert_array_equal(samples[: len(CLIP.samples)], CLIP.samples)
    assert not samples[len(CLIP.samples) :].any()
    assert len(decoded(additional_information(X_VECTOR)["ref_audio"][0])[0]) == len(CLIP.samples)


def test_a_partial_last_frame_of_the_clip_counts(model: Models) -> None:
    base = model(Task.VOICE_CLONE)
    frames = [
        reference_frames(ReferenceClip(np.zeros(n, np.float32), 24_000), base)
        for n in (1920, 1921, 24_000, 24_001)
    ]
    assert frames == [1, 2, 13, 13]


def test_every_value_is_a_list_of_one_in_the_talker_s_own_fields() -> None:
    request = replace(CLONE, text=" Good\nmorning. ", first_chunk_frames=2, stream=False)
    info = additional_information(request)
    assert {len(value) for value in info.values()} == {1}
    audio = info.pop("ref_audio")
    assert audio[0].startswith("data:")
    assert {key: value[0] for key, value in info.items()} == {
        "text": "Good morning.",
        "task_type": "Base",
        "language": "Auto",
        "instruct": "",
        "non_streaming_mode": False,
        "x_vector_only_mode": False,
        "ref_text": "What the clip says.",
        "initial_codec_chunk_frames": 2,
        "full_utterance_decode": True,
    }


def test_only_a_named_speaker_is_named_to_the_talker() -> None:
    """It keeps a clone under the speaker's name, and would give it to the next request of that name."""
    assert additional_information(NAMED)["speaker"] == ["vivian"]
    assert "speaker" not in additional_information(replace(CLONE, speaker="someone"))


@pytest.mark.parametrize(
    ("speaker", "asked", "told"),
    [
        ("eric", "Chinese", "Auto"),
        ("eric", "English", "English"),
        ("vivian", "Chinese", "Chinese"),
        ("Eric", "Chinese", "Auto"),
    ],
)
def test_a_dialect_s_speaker_speaks_it_where_chinese_is_asked_for(
    speaker: str, asked: str, told: str, model: Models
) -> None:
    """vLLM-Omni takes the dialect only where the language is left to it, the reference package here too."""
    pytest.importorskip("vllm_omni")
    request = replace(NAMED, speaker=speaker, language=asked)
    built = build_prompt(request, model(Task.NAMED_SPEAKER), lambda text: list(range(12)))
    assert built["additional_information"]["language"] == [told]


def test_an_x_vector_clone_carries_no_transcript() -> None:
    info = additional_information(replace(X_VECTOR, transcript="What the clip says."))
    assert "ref_text" not in info
    assert info["x_vector_only_mode"] == [True]


def test_frame_limit_is_the_wish_or_by_the_length_of_the_text(model: Models) -> None:
    base = model(Task.VOICE_CLONE)

    def limit(**values: Any) -> int:
        return prompt.frame_limit(replace(X_VECTOR, **values), base, 2048, words)

    assert limit(max_frames=5) == 5
    assert limit(text="Short.") == 192
    assert limit(text="word " * 20) == 240
    assert limit(text="word " * 400) == 2048


@pytest.fixture(scope="session")
def upstream() -> Callable[[ModelInfo, Tokenize, dict[str, Any]], int]:
    """vLLM-Omni's own adapter, as its HTTP server uses it, with as little of a server as that takes."""
    pytest.importorskip("vllm_omni", reason="vLLM-Omni is not installed")
    from vllm_omni.entrypoints.openai.tts_adapters.qwen3_tts import Qwen3TTSAdapter

    class Adapter(Qwen3TTSAdapter):
        capabilities = SimpleNamespace(codec_frame_rate=12.5)

        def __init__(self, ctx: Any) -> None:
            self.ctx = ctx

    def estimate(model: ModelInfo, tokenize: Tokenize, params: dict[str, Any]) -> int:
        talker = SimpleNamespace(codec_language_id=model.language_ids, spk_is_dialect=model.speaker_dialects)
        config = SimpleNamespace(hf_config=SimpleNamespace(talker_config=talker))
        server = SimpleNamespace(_tts_tokenizer=lambda text, padding: {"input_ids": tokenize(text)})
        context = SimpleNamespace(server=server, engine_client=SimpleNamespace(model_config=config))
        return int(Adapter(context)._estimate_prompt_len(params))

    return estimate


@pytest.mark.parametrize(
    ("request_", "extra"),
    [
        (CLONE, {}),
        (X_VECTOR, {}),
        (NAMED, {}),
        (DESIGN, {}),
        (CLONE, {"language": "German", "text": "Ein längerer Satz, der mehr Stellen braucht."}),
        (NAMED, {"speaker": "eric", "language": "Chinese", "text": "你好世界今天天气很好。"}),
        (NAMED, {"instruction": "Cheerfully, a little out of breath.", "stream": False}),
        (X_VECTOR, {"text": "a"}),
    ],
)
def test_the_prompt_is_as_long_as_upstream_makes_it(
    request_: SpeechRequest, extra: dict[str, Any], model: Models, upstream: Any
) -> None:
    from transformers import Qwen2Tokenizer

    request = replace(request_, **extra)
    info = model(request.task)
    tokenizer = Qwen2Tokenizer.from_pretrained(info.folder)

    def tokenize(text: str) -> list[int]:
        return list(tokenizer(text, padding=False)["input_ids"])

    built = build_prompt(request, info, tokenize)
    assert set(built["prompt_token_ids"]) == {2148}
    params = dict(built["additional_information"])
    params.pop("ref_code_length", None)
    if request.reference is not None:
        samples, rate = decoded(params["ref_audio"][0])
        params["ref_audio"] = [[samples.tolist(), rate]]
    length = upstream(info, tokenize, params)
    assert length != 2048  # upstream's answer to an estimate that failed
    assert len(built["prompt_token_ids"]) == length


def test_a_clip_of_whole_frames_counts_exactly_those(model: Models) -> None:
    checkpoint = model(Task.VOICE_CLONE)
    for frames in range(12, 382):
        whole = clip(np.zeros(frames * checkpoint.samples_per_frame))
        assert reference_frames(whole, checkpoint) == frames
