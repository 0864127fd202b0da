"""Audio8 TTS beside Qwen3-TTS: what a checkpoint of it can do, and its prompts, as long as upstream's."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from backend.chunk_ramp import ramp_from_first_chunk
from backend.contract import InvalidRequest, ReferenceClip, SpeechRequest, Task
from backend.deployment import needs_of
from backend.families import audio8_checkpoint
from backend.families.family import CheckpointError, ModelInfo
from backend.families.registry import read_model_info
from backend.prompt import check_request, max_text_chars, pieces
from backend.sampling import sampling_params
from backend.stage_config import load_stage_config
from backend.warm_up import requests

TEXT_ONLY = SpeechRequest("Good  morning,\nall.", Task.TEXT_ONLY)
# 2.01 s at the clip's rate, 44 codec frames at the codec's.
CLIP = ReferenceClip(np.sin(np.arange(48_240) / 20).astype(np.float32) / 3, 24_000)
CLONE = replace(TEXT_ONLY, task=Task.VOICE_CLONE, reference=CLIP, transcript="What the clip says.")


@pytest.fixture
def model(tmp_path: Path) -> ModelInfo:
    """Of config files alone: nothing here needs weights."""
    (tmp_path / "config.json").write_text(json.dumps(audio8_checkpoint.CONFIG))
    return read_model_info(tmp_path)


def refusal(request: SpeechRequest, model: ModelInfo) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request, model, 1024, 0)
    assert str(caught.value).endswith(".")
    return str(caught.value), caught.value.param


def characters(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_its_checkpoint_is_recognised_and_tells_what_it_can_do(model: ModelInfo) -> None:
    assert model.family.name == "Audio8 TTS"
    assert model.tasks == (Task.TEXT_ONLY, Task.VOICE_CLONE)
    assert (model.sample_rate_hz, model.samples_per_frame, model.codebooks) == (44_100, 2048, 10)
    assert (model.supports_x_vector, model.supports_instruction) == (False, False)
    assert model.kv_bytes_per_token == 2 * 2 * (2 * 1 * 32)


def test_a_config_without_its_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "arktts"}')
    with pytest.raises(CheckpointError, match="not a checkpoint of Audio8 TTS"):
        read_model_info(tmp_path)


@pytest.mark.parametrize(
    ("request_", "param", "words"),
    [
        (replace(CLONE, transcript=""), "transcript", "Type what the clip says."),
        (replace(CLONE, x_vector_only=True), "x_vector_only", "needs the clip's transcript"),
        (replace(TEXT_ONLY, reference=CLIP), "reference", "choose to clone a voice"),
        (replace(TEXT_ONLY, task=Task.NAMED_SPEAKER, speaker="ann"), "task", "text alone"),
        (replace(TEXT_ONLY, instruction="Calmly."), "instruction", "takes no instruction"),
        (replace(TEXT_ONLY, language="English"), "language", "must be one of Auto"),
        (replace(TEXT_ONLY, text="a" * 601), "text", "601 characters; shorten it to 600"),
        (replace(TEXT_ONLY, first_chunk_frames=1), "first_chunk_frames", "fixes the first chunk"),
        (replace(TEXT_ONLY, predictor_top_k=5), "predictor_top_k", "has a code predictor of its own"),
    ],
)
def test_what_it_cannot_do_is_refused(
    request_: SpeechRequest, param: str, words: str, model: ModelInfo
) -> None:
    pytest.importorskip("vllm_omni", reason="vLLM-Omni is not installed")
    sentence, at_fault = refusal(request_, model)
    assert at_fault == param
    assert words in sentence


@pytest.mark.parametrize("request_", [TEXT_ONLY, CLONE])
def test_its_tasks_are_served_but_no_control_tokens_spoken(request_: SpeechRequest, model: ModelInfo) -> None:
    pytest.importorskip("vllm_omni", reason="vLLM-Omni is not installed")
    check_request(request_, model, 1024, 0)
    check_request(replace(request_, text="<|speaker:1|> Good morning."), model, 1024, 0)
    sentence, param = refusal(replace(request_, text="Good <|im_end|> morning."), model)
    assert (sentence, param) == ("Leave control tokens such as <|im_end|> out of the text.", "text")


def test_text_without_a_voice_is_spoken_in_one_piece(model: ModelInfo) -> None:
    long = "A sentence of some length, to be cut or not. " * 12
    assert max_text_chars(Task.TEXT_ONLY, model) == 600
    assert pieces(replace(TEXT_ONLY, text=long)) == [long]
    assert len(pieces(replace(CLONE, text=long))) > 1


@pytest.fixture(scope="session")
def upstream() -> Callable[..., dict[str, Any]]:
    """vLLM-Omni's own adapter, with as little of a server as its prompts take."""
    pytest.importorskip("vllm_omni", reason="vLLM-Omni is not installed")
    from vllm_omni.entrypoints.openai.tts_adapters.audio8_tts import Audio8TTSAdapter

    class Adapter(Audio8TTSAdapter):
        def __init__(self) -> None:
            self.ctx = SimpleNamespace(server=SimpleNamespace(uploaded_speakers={}))

        def _tokenizer(self) -> Any:
            return SimpleNamespace(encode=lambda text, add_special_tokens: characters(text))

    def build(request: SpeechRequest) -> dict[str, Any]:
        asked = SimpleNamespace(
            input=request.text, ref_text=request.transcript or None, voice=None, max_new_tokens=None
        )
        clip = request.reference
        return Adapter()._build_prompt(asked, clip and (clip.samples.tolist(), clip.sample_rate_hz))

    return build


@pytest.mark.parametrize(
    "request_",
    [
        TEXT_ONLY,
        CLONE,
        replace(CLONE, transcript="<|speaker:2|> Someone else."),
        replace(CLONE, reference=ReferenceClip(CLIP.samples, 22_050)),
    ],
)
def test_the_prompt_is_upstream_s(request_: SpeechRequest, model: ModelInfo, upstream: Any) -> None:
    ours, theirs = model.family.build_prompt(request_, model, characters), upstream(request_)
    assert ours["prompt_token_ids"] == theirs["prompt_token_ids"]
    told, expected = ours["additional_information"], theirs["additional_information"]
    wave, expected_wave = told.pop("ref_audio_wav", None), expected.pop("ref_audio_wav", None)
    assert told == expected
    if request_.reference is not None:
        np.testing.assert_array_equal(wave, expected_wave)


def test_its_chunks_are_announced_as_upstream_cuts_them(model: ModelInfo) -> None:
    """Against vLLM-Omni's own chunker, fed frame by frame."""
    pytest.importorskip("vllm_omni", reason="vLLM-Omni is not installed")
    import torch
    from vllm_omni.model_executor.stage_input_processors.audio8_tts import (
        slow_ar_to_codec_decoder_async_chunk as chunker,
    )

    config = load_stage_config("audio8_cpu", needs_of(model))
    extra = config.chunking.model_dump(exclude_none=True)
    sent: dict[str, int] = {"run": 0}
    transfer = SimpleNamespace(
        connector=SimpleNamespace(config=extra), code_prompt_token_ids={"run": []}, put_req_chunk=sent
    )
    request = SimpleNamespace(external_req_id="run", additional_information=None, is_finished=lambda: False)
    cut = []
    for _ in range(80):
        payload = chunker(transfer, {"audio_codes": torch.ones(1, 10, dtype=torch.long)}, request)
        if payload is not None:
            sent["run"] += 1
            cut.append(payload.codes.audio.shape[1] - payload.meta.left_context_size)
    announced = model.family.chunk_schedule_frames(config)
    assert cut == [4, 4, 4, 4, 4, 4, 25, 25]
    assert (*announced, announced[-1]) == tuple(cut)
    assert ramp_from_first_chunk(None, announced, 25) == announced


def test_the_seed_reaches_its_code_predictor_too(model: ModelInfo) -> None:
    vllm = pytest.importorskip("vllm.sampling_params", reason="vLLM is not installed")
    defaults = [vllm.SamplingParams(max_tokens=9), vllm.SamplingParams()]
    talker, _ = sampling_params(defaults, TEXT_ONLY, 7, 9, model.family.extra_args(7))
    assert (talker.seed, talker.extra_args) == (7, {"tts_local_seed": 7})
    assert defaults[0].extra_args is None


def test_the_warm_up_speaks_each_task_briefly_and_ends_with_text_alone(model: ModelInfo) -> None:
    cloned, whole, last = requests(model)
    assert (cloned.task, bool(cloned.transcript), cloned.x_vector_only) == (Task.VOICE_CLONE, True, False)
    assert (whole.task, whole.stream, whole.max_frames) == (Task.TEXT_ONLY, False, 6)
    assert (last.task, last.stream, last.max_frames) == (Task.TEXT_ONLY, True, 13)


def test_the_random_checkpoint_s_tokenizer_has_the_published_special_ids() -> None:
    pytest.importorskip("vllm_omni", reason="vLLM-Omni is not installed")
    from vllm_omni.model_executor.models.audio8_tts.pipeline import AUDIO8_TTS_EOS_TOKEN_ID
    from vllm_omni.model_executor.models.audio8_tts.prompt_utils import build_text_only_prompt_ids

    encoder = Tokenizer.from_str(json.dumps(audio8_checkpoint.tokenizer_file()))
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: encoder.encode(text).ids)
    ids, _ = build_text_only_prompt_ids(tokenizer, "Hello.")
    specials = [i for i in ids if i >= audio8_checkpoint.PAD_ID]
    assert specials == [151644, AUDIO8_TTS_EOS_TOKEN_ID] * 2 + [151644, 151647]
    assert encoder.decode(ids).endswith("Hello.\nassistant\n")
