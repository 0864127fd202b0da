"""From the page's fields to a SpeechRequest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.contract import Capabilities, InvalidRequest, Mode, SpeechRequest, Task
from backend.voices import ClipLoader, PresetVoice

# The voice choice that means the visitor's own recording.
OWN_CLIP = "own clip"
# The engine's least, its largest seed's length, and far more than any model's longest speech.
MIN_FRAMES = 2
MAX_SEED_DIGITS = 10
MAX_LENGTH_S = 3600.0


@dataclass(frozen=True)
class Fields:
    """The page's inputs as they come from Gradio. None or '' means: not given."""

    text: str
    voice: str | None = None
    language: str | None = None
    stream: bool = True
    own_clip: str | None = None
    transcript: str = ""
    x_vector_only: bool = True
    instruction: str = ""
    seed: str = ""
    temperature: float | None = None
    top_k: int | None = None
    max_length_s: float | None = None
    first_chunk_frames: int | None = None
    mode: str | None = None
    predictor_temperature: float | None = None
    predictor_top_k: int | None = None


def build_request(
    fields: Fields,
    task: Task,
    capabilities: Capabilities,
    voices: Sequence[PresetVoice],
    load_clip: ClipLoader,
) -> SpeechRequest:
    """Reads and checks the reference clip, so it may take a moment; call it in a thread.

    Raises InvalidRequest. What only the engine can judge is left to it.
    """
    speaker, reference, transcript, x_vector_only = None, None, "", False
    if task is Task.NAMED_SPEAKER:
        speaker = fields.voice or next(iter(capabilities.speakers), None)
    elif task is Task.VOICE_CLONE:
        clip, transcript = _clip_and_transcript(fields, voices)
        reference = load_clip(clip)
        # In-context cloning needs the clip's words; without them only the voice can be taken.
        x_vector_only = capabilities.supports_x_vector and (fields.x_vector_only or not transcript)
    predictor_temperature, predictor_top_k = fields.predictor_temperature, fields.predictor_top_k
    if not capabilities.supports_predictor_sampling:
        # Fields the page hides, but sends.
        predictor_temperature, predictor_top_k = None, None
    return SpeechRequest(
        text=fields.text,
        task=task,
        language=fields.language or "Auto",
        speaker=speaker,
        reference=reference,
        transcript="" if x_vector_only else transcript,
        x_vector_only=x_vector_only,
        instruction=(fields.instruction or "").strip(),
        seed=_seed(fields.seed),
        temperature=fields.temperature,
        top_k=fields.top_k,
        max_frames=_max_frames(fields.max_length_s, capabilities),
        first_chunk_frames=_unless(fields.first_chunk_frames, capabilities.chunk_schedule_frames[0]),
        stream=fields.stream,
        mode=_mode(fields.mode),
        predictor_temperature=predictor_temperature,
        predictor_top_k=predictor_top_k,
    )


def _clip_and_transcript(fields: Fields, voices: Sequence[PresetVoice]) -> tuple[Path, str]:
    choice = fields.voice
    # Through the API a clip may come without a word about the voice.
    if choice == OWN_CLIP or (fields.own_clip and not choice) or not voices:
        if not fields.own_clip:
            raise InvalidRequest(
                "Upload or record a clip of the voice, or choose a preset voice.", "own_clip"
            )
        return Path(fields.own_clip), (fields.transcript or "").strip()
    preset = next((voice for voice in voices if voice.name == choice), None) if choice else voices[0]
    if preset is None:
        known = ", ".join(voice.name for voice in voices)
        raise InvalidRequest(f"There is no voice named {choice!r}; choose one of {known}.", "voice")
    return preset.audio_path, preset.transcript


def _seed(text: str) -> int | None:
    text = str(text).strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > MAX_SEED_DIGITS:
        raise InvalidRequest("The seed must be a whole number from 0 up, or empty for a random one.", "seed")
    return int(text)


def _mode(name: str | None) -> Mode | None:
    if not name:
        return None
    if name not in list(Mode):
        raise InvalidRequest(f"The mode must be one of {', '.join(Mode)}, not {name!r}.", "mode")
    return Mode(name)


def _max_frames(seconds: float | None, capabilities: Capabilities) -> int | None:
    if seconds is None:
        return None
    frame_rate_hz = capabilities.sample_rate_hz / capabilities.samples_per_frame
    frames = max(MIN_FRAMES, round(min(seconds, MAX_LENGTH_S) * frame_rate_hz))
    # The field starts out at the model's own limit. Left there it is no wish, and the engine may
    # judge by the length of the text.
    return None if frames >= capabilities.max_frames else frames


def _unless(value: int | None, default: int) -> int | None:
    return None if value == default else value
