"""What every model asks of a request: limits, the text as it can be spoken, and its pieces."""

import re
import unicodedata

import numpy as np

from backend import long_text
from backend.contract import InvalidRequest, ReferenceClip, SpeechRequest, Task
from backend.families.family import ModelInfo, Tokenize
from backend.reference_audio import MAX_CLIP_S, MIN_CLIP_S

# Some twelve minutes of speech.
MAX_TEXT_CHARS = 10_000
MAX_INSTRUCTION_CHARS = 500
MAX_TRANSCRIPT_CHARS = 1000
MAX_SEED = 2**31 - 1
# All codes of a group.
MAX_TOP_K = 2048
# With fewer, the talker makes no frame at all.
MIN_FRAMES = 2


def clean_text(text: str) -> str:
    """Text as it can be spoken: composed, no control characters or stray surrogates, single spaces."""
    composed = unicodedata.normalize("NFC", "".join(c for c in text if unicodedata.category(c) != "Cs"))
    visible = (" " if unicodedata.category(c) == "Cc" else c for c in composed)
    return re.sub(r"\s+", " ", "".join(visible)).strip()


# Without a voice to hold on to, one comes out anew, and another, each time: such text is not cut.
_UNCUT_TASKS = (Task.VOICE_DESIGN, Task.TEXT_ONLY)


def max_text_chars(task: Task, model: ModelInfo) -> int:
    """The longest text of one request."""
    return model.family.max_uncut_text_chars if task in _UNCUT_TASKS else MAX_TEXT_CHARS


def pieces(request: SpeechRequest) -> list[str]:
    """The text as it is spoken: one piece, or for a long text several, each a prompt of its own."""
    if request.task in _UNCUT_TASKS:
        return [request.text]
    # Cleaned first: that is what the limit counts, and a raw text may be many times as long.
    paragraphs = map(clean_text, re.split(r"\n\s*\n", request.text))
    return long_text.pieces("\n\n".join(filter(None, paragraphs)), request.language)


def check_request(
    request: SpeechRequest, model: ModelInfo, max_frames: int, max_first_chunk_frames: int
) -> None:
    """Raises InvalidRequest, with a sentence for the person who asked, if `model` cannot serve this."""
    _check_text(request.text, max_text_chars(request.task, model))
    if request.task not in model.tasks:
        able = " and ".join(_TASK_WORDS[task] for task in model.tasks)
        raise InvalidRequest(f"The loaded checkpoint is made for {able} only.", "task")
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
        raise InvalidRequest(_NO_CLIP[Task.VOICE_CLONE in model.tasks], "reference")
    if request.task in _TASK_CHECKS:
        _TASK_CHECKS[request.task](request, model)
    model.family.check(request)
    _check_range(request.temperature, 0.0, 2.0, "temperature")
    _check_range(request.top_k, 1, MAX_TOP_K, "top_k")
    if model.family.foreign_predictor:
        for param in ("predictor_temperature", "predictor_top_k"):
            if getattr(request, param) is not None:
                raise InvalidRequest(f"{model.family.foreign_predictor}; leave {param} out.", param)
    _check_range(request.predictor_temperature, 0.0, 2.0, "predictor_temperature")
    _check_range(request.predictor_top_k, 1, MAX_TOP_K, "predictor_top_k")
    _check_range(request.max_frames, MIN_FRAMES, max_frames, "max_frames")
    if request.first_chunk_frames is not None and not max_first_chunk_frames:
        raise InvalidRequest(
            "The stage configuration fixes the first chunk; leave its size out.", "first_chunk_frames"
        )
    _check_range(request.first_chunk_frames, 1, max_first_chunk_frames, "first_chunk_frames")
    _check_range(request.seed, 0, MAX_SEED, "seed")


def frame_limit(request: SpeechRequest, model: ModelInfo, max_frames: int, tokenize: Tokenize) -> int:
    """Frames this request may reach at most: its own wish, or the family's ceiling by text length."""
    if request.max_frames is not None:
        return request.max_frames
    family = model.family
    by_text = family.frames_per_text_token * len(tokenize(clean_text(request.text)))
    return min(max_frames, max(family.least_frame_limit, by_text))


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
    if request.x_vector_only and not model.supports_x_vector:
        raise InvalidRequest(
            "The loaded checkpoint needs the clip's transcript; give it, and leave the x-vector out.",
            "x_vector_only",
        )
    if not request.x_vector_only and not clean_text(request.transcript):
        way_out = ", or choose to use the x-vector only" if model.supports_x_vector else ""
        raise InvalidRequest(f"Type what the clip says{way_out}.", "transcript")


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
    Task.TEXT_ONLY: "text alone, in a voice of its own choice",
}
# By whether the checkpoint clones at all.
_NO_CLIP = {
    False: "The loaded checkpoint clones no voices; leave the clip out.",
    True: "This task speaks without a clip; leave it out, or choose to clone a voice.",
}
_TASK_CHECKS = {
    Task.VOICE_CLONE: _check_clone,
    Task.NAMED_SPEAKER: _check_speaker,
    Task.VOICE_DESIGN: _check_design,
}
