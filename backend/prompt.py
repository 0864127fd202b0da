"""From a SpeechRequest to what vLLM-Omni's talker takes: placeholder tokens and additional information.

The talker builds its real input embeddings itself, from `additional_information`;
the prompt's tokens only reserve as many positions as those embeddings will have.
Field names and limits are those of vllm_omni/entrypoints/openai/tts_adapters/qwen3_tts.py.
"""

import base64
import io
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import soundfile

from backend import long_text
from backend.contract import InvalidRequest, ReferenceClip, SpeechRequest, Task
from backend.model_info import ModelInfo
from backend.reference_audio import MAX_CLIP_S, MIN_CLIP_S, with_onset_silence

# Some twelve minutes of speech; text that is spoken in one piece has upstream's limit on it.
MAX_TEXT_CHARS = 10_000
MAX_UNCUT_TEXT_CHARS = 2000
MAX_INSTRUCTION_CHARS = 500
MAX_TRANSCRIPT_CHARS = 1000
MAX_SEED = 2**31 - 1
# All codes of a group.
MAX_TOP_K = 2048
# The talker's codec_pad. vLLM counts prompt tokens as spoken for the repetition penalty, so the
# placeholder must be a token the talker can never sample; upstream's own 1 is a real code.
PLACEHOLDER_TOKEN = 2148
# Upstream's ceiling on a clone that fails to end: 12 frames a text token, at least 192.
MIN_FRAME_LIMIT = 192
FRAMES_PER_TEXT_TOKEN = 12
# With fewer, the talker makes no frame at all.
MIN_FRAMES = 2

Tokenize = Callable[[str], list[int]]


def clean_text(text: str) -> str:
    """Text as it can be spoken: composed, no control characters or stray surrogates, single spaces."""
    composed = unicodedata.normalize("NFC", "".join(c for c in text if unicodedata.category(c) != "Cs"))
    visible = (" " if unicodedata.category(c) == "Cc" else c for c in composed)
    return re.sub(r"\s+", " ", "".join(visible)).strip()


def max_text_chars(task: Task) -> int:
    """The longest text of one request."""
    return MAX_UNCUT_TEXT_CHARS if task is Task.VOICE_DESIGN else MAX_TEXT_CHARS


def pieces(request: SpeechRequest) -> list[str]:
    """The text as it is spoken: one piece, or for a long text several, each a prompt of its own."""
    # A voice that is designed comes out anew, and another, each time.
    if request.task is Task.VOICE_DESIGN:
        return [request.text]
    # Cleaned first: that is what the limit counts, and a raw text may be many times as long.
    paragraphs = map(clean_text, re.split(r"\n\s*\n", request.text))
    return long_text.pieces("\n\n".join(filter(None, paragraphs)), request.language)


def check_request(
    request: SpeechRequest, model: ModelInfo, max_frames: int, max_first_chunk_frames: int
) -> None:
    """Raises InvalidRequest, with a sentence for the person who asked, if `model` cannot serve this."""
    _check_text(request.text, max_text_chars(request.task))
    if request.task is not model.task:
        raise InvalidRequest(f"The loaded checkpoint is made for {_TASK_WORDS[model.task]} only.", "task")
    if request.language not in model.languages:
        raise InvalidRequest(
            f"The language must be one of {', '.join(model.languages)}, not {request.language!r}.", "language"
        )
    if len(request.instruction) > MAX_INSTRUCTION_CHARS:
        raise InvalidRequest(f"Shorten the instruction to {MAX_INSTRUCTION_CHARS} characters.", "instruction")
    if request.instruction.strip() and not model.supports_instruction:
        raise InvalidRequest(
            "The loaded checkpoint takes no instruction; leave that field empty.", "instruction"
        )
    if request.speaker is not None and request.task is not Task.NAMED_SPEAKER:
        raise InvalidRequest("The loaded checkpoint has no named speakers; leave the speaker out.", "speaker")
    if request.reference is not None and request.task is not Task.VOICE_CLONE:
        raise InvalidRequest("The loaded checkpoint clones no voices; leave the clip out.", "reference")
    _TASK_CHECKS[request.task](request, model)
    _check_range(request.temperature, 0.0, 2.0, "temperature")
    _check_range(request.top_k, 1, MAX_TOP_K, "top_k")
    _check_range(request.predictor_temperature, 0.0, 2.0, "predictor_temperature")
    _check_range(request.predictor_top_k, 1, MAX_TOP_K, "predictor_top_k")
    _check_range(request.max_frames, MIN_FRAMES, max_frames, "max_frames")
    if request.first_chunk_frames is not None and not max_first_chunk_frames:
        raise InvalidRequest(
            "The stage configuration fixes the first chunk; leave its size out.", "first_chunk_frames"
        )
    _check_range(request.first_chunk_frames, 1, max_first_chunk_frames, "first_chunk_frames")
    _check_range(request.seed, 0, MAX_SEED, "seed")


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


def build_prompt(request: SpeechRequest, model: ModelInfo, tokenize: Tokenize) -> dict[str, Any]:
    """The prompt for `AsyncOmni.generate`: `tokens_input()` of the model's own length estimate.

    A prompt of another length is silently cut or padded by the talker, so the
    estimate is upstream's own function, given the reference clip's frame count.
    """
    from vllm.inputs import tokens_input
    from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import Qwen3TTSPromptEmbedsBuilder

    info = additional_information(request)
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


def frame_limit(request: SpeechRequest, max_frames: int, tokenize: Tokenize) -> int:
    """Frames this request may reach at most: its own wish, or upstream's ceiling by text length."""
    if request.max_frames is not None:
        return request.max_frames
    by_text = FRAMES_PER_TEXT_TOKEN * len(tokenize(clean_text(request.text)))
    return min(max_frames, max(MIN_FRAME_LIMIT, by_text))


def as_data_url(clip: ReferenceClip) -> str:
    """The clip as base64 WAV, 32-bit float: the compact form the talker accepts, and lossless."""
    buffer = io.BytesIO()
    soundfile.write(
        buffer, clip.samples.astype(np.float32), clip.sample_rate_hz, format="WAV", subtype="FLOAT"
    )
    return "data:audio/wav;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _check_text(text: str, max_chars: int) -> None:
    # Cleaning can only shorten a text, but not by this much; a huge one is not worth the time.
    spoken = text if len(text) > 50 * max_chars else clean_text(text)
    if not any(c.isalnum() for c in spoken):
        raise InvalidRequest("Type something to speak: there is no letter or digit in the text.", "text")
    if len(spoken) > max_chars:
        raise InvalidRequest(f"The text has {len(spoken):,} characters; shorten it to {max_chars:,}.", "text")


def _check_clone(request: SpeechRequest, model: ModelInfo) -> None:
    if request.reference is None:
        raise InvalidRequest("Choose a voice, or give a clip of one to clone.", "reference")
    _check_clip(request.reference)
    if len(request.transcript) > MAX_TRANSCRIPT_CHARS:
        raise InvalidRequest(f"Shorten the transcript to {MAX_TRANSCRIPT_CHARS:,} characters.", "transcript")
    if not request.x_vector_only and not clean_text(request.transcript):
        raise InvalidRequest("Type what the clip says, or choose to use the x-vector only.", "transcript")


def _check_clip(clip: ReferenceClip) -> None:
    """Again what `load_reference_clip` makes sure of: a clip the talker cannot encode ends its process."""
    if clip.samples.ndim != 1 or not np.isfinite(clip.samples).all():
        raise InvalidRequest("The reference clip must be mono and made of numbers.", "reference")
    if not MIN_CLIP_S <= clip.duration_s <= MAX_CLIP_S:
        raise InvalidRequest(
            f"The reference clip must last from {MIN_CLIP_S:.0f} to {MAX_CLIP_S:.0f} s, "
            f"not {clip.duration_s:.1f} s.",
            "reference",
        )


def _check_speaker(request: SpeechRequest, model: ModelInfo) -> None:
    if request.speaker not in model.speakers:
        raise InvalidRequest(
            f"The speaker must be one of {', '.join(model.speakers)}, not {request.speaker!r}.", "speaker"
        )


def _check_design(request: SpeechRequest, model: ModelInfo) -> None:
    if not clean_text(request.instruction):
        raise InvalidRequest("Describe the voice to design.", "instruction")


def _check_range(value: float | None, low: float, high: float, param: str) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequest(
            f"{param.replace('_', ' ').capitalize()} must be from {low} to {high}, not {value}.", param
        )


_TASK_WORDS = {
    Task.VOICE_CLONE: "cloning a voice from a clip",
    Task.NAMED_SPEAKER: "its own named speakers",
    Task.VOICE_DESIGN: "voices described in words",
}
_TASK_CHECKS = {
    Task.VOICE_CLONE: _check_clone,
    Task.NAMED_SPEAKER: _check_speaker,
    Task.VOICE_DESIGN: _check_design,
}
