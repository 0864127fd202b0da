"""From a SpeechRequest to what Qwen3-TTS's talker takes: placeholder tokens and additional information.

The talker builds its real input embeddings itself, from `additional_information`;
the prompt's tokens only reserve as many positions as those embeddings will have.
Field names and limits are those of vllm_omni/entrypoints/openai/tts_adapters/qwen3_tts.py.
"""

import base64
import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import soundfile

from backend.contract import ReferenceClip, SpeechRequest, Task
from backend.families.family import ModelInfo, Tokenize
from backend.prompt import clean_text
from backend.reference_audio import with_onset_silence

# The talker's codec_pad. vLLM counts prompt tokens as spoken for the repetition penalty, so the
# placeholder must be a token the talker can never sample; upstream's own 1 is a real code.
PLACEHOLDER_TOKEN = 2148


@dataclass(frozen=True)
class Qwen3TtsInfo(ModelInfo):
    """With the talker's ids, from which the prompt's length follows."""

    language_ids: dict[str, int]
    speaker_dialects: dict[str, Any]


def additional_information(request: SpeechRequest) -> dict[str, list[Any]]:
    """The request in the talker's own fields; every value is a list of one, as the talker expects."""
    info: dict[str, Any] = {
        "text": clean_text(request.text),
        "task_type": request.task.value,
        "language": request.language,
        "instruct": clean_text(request.instruction),
        "non_streaming_mode": request.task is not Task.VOICE_CLONE,
    }
    # Nothing else may name a speaker: the talker keeps a cloned voice under that name for later requests.
    if request.task is Task.NAMED_SPEAKER:
        info["speaker"] = request.speaker
    if request.reference is not None:
        info["ref_audio"] = as_data_url(clip_to_encode(request))
        info["x_vector_only_mode"] = request.x_vector_only
        if not request.x_vector_only:
            info["ref_text"] = clean_text(request.transcript)
    if request.first_chunk_frames is not None:
        info["initial_codec_chunk_frames"] = request.first_chunk_frames
    if not request.stream:
        info["full_utterance_decode"] = True
    return {key: [value] for key, value in info.items()}


def build_prompt(request: SpeechRequest, model: Qwen3TtsInfo, tokenize: Tokenize) -> dict[str, Any]:
    """The prompt for `AsyncOmni.generate`: `tokens_input()` of the model's own length estimate.

    A prompt of another length is silently cut or padded by the talker, so the
    estimate is upstream's own function, given the reference clip's frame count.
    """
    from vllm.inputs import tokens_input
    from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import Qwen3TTSPromptEmbedsBuilder

    info = additional_information(_in_own_dialect(request, model))
    if request.reference is not None:
        info["ref_code_length"] = [reference_frames(clip_to_encode(request), model)]
    length = Qwen3TTSPromptEmbedsBuilder.estimate_prompt_len_from_additional_information(
        info,
        task_type=request.task.value,
        tokenize_prompt=tokenize,
        codec_language_id=model.language_ids,
        spk_is_dialect=model.speaker_dialects,
    )
    prompt: dict[str, Any] = {**tokens_input(prompt_token_ids=[PLACEHOLDER_TOKEN] * length)}
    prompt["additional_information"] = info
    return prompt


def _in_own_dialect(request: SpeechRequest, model: Qwen3TtsInfo) -> SpeechRequest:
    """A dialect's speaker speaks it also where Chinese is asked for, as in the reference package.

    vLLM-Omni chooses the dialect under Auto alone.
    """
    speaks_dialect = model.speaker_dialects.get((request.speaker or "").lower())
    return replace(request, language="Auto") if speaks_dialect and request.language == "Chinese" else request


def clip_to_encode(request: SpeechRequest) -> ReferenceClip:
    """The request's clip as it goes to the talker: for in-context cloning, with silence after it.

    Without it the clip's last sound runs on into the first of the speech (see `with_onset_silence`).
    """
    assert request.reference is not None
    return request.reference if request.x_vector_only else with_onset_silence(request.reference)


def reference_frames(clip: ReferenceClip, model: ModelInfo) -> int:
    """Codec frames the reference clip encodes to: its last, partial frame counts."""
    # In whole numbers: a float product of the two rates can land just above a whole frame.
    return -(-len(clip.samples) * model.sample_rate_hz // (clip.sample_rate_hz * model.samples_per_frame))


def as_data_url(clip: ReferenceClip) -> str:
    """The clip as base64 WAV, 32-bit float: the compact form the talker accepts, and lossless."""
    buffer = io.BytesIO()
    soundfile.write(
        buffer, clip.samples.astype(np.float32), clip.sample_rate_hz, format="WAV", subtype="FLOAT"
    )
    return "data:audio/wav;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
