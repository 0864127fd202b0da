"""From the API's body to a SpeechRequest: which voice is meant, and its clip."""

import base64
import binascii
from collections.abc import Sequence
from functools import lru_cache

import httpx

from backend.contract import Capabilities, InvalidRequest, ReferenceClip, SpeechRequest, Task
from backend.reference_audio import MAX_FILE_BYTES, load_reference_clip
from backend.serving.saved_voices import SavedVoice, SavedVoices
from backend.serving.schema import SpeechBody
from backend.voices import PresetVoice

# vLLM-Omni's name of whichever voice comes first.
DEFAULT_VOICE = "default"
FETCH_TIMEOUT_S = 10.0

StoredVoice = PresetVoice | SavedVoice


class VoiceChoice:
    """The voices a request may name, and the requests that name them."""

    def __init__(
        self, presets: Sequence[PresetVoice], saved: SavedVoices, media_domains: Sequence[str] = ()
    ) -> None:
        self.presets = tuple(presets)
        self.saved = saved
        self._media_domains = frozenset(media_domains)
        # The presets are few and never change.
        self._preset_clip = lru_cache(maxsize=None)(load_reference_clip)

    def names(self, capabilities: Capabilities | None) -> list[str]:
        """Every name that the loaded checkpoint can speak with; clones where it is not known yet."""
        task = capabilities.tasks[0] if capabilities else Task.VOICE_CLONE
        if task is Task.VOICE_CLONE:
            return [voice.name for voice in self._stored_voices()]
        return list(capabilities.speakers) if capabilities else []

    def is_preset(self, name: str) -> bool:
        return self._preset(name) is not None

    def request(self, body: SpeechBody, capabilities: Capabilities) -> SpeechRequest:
        """Decodes the reference clip, so call it in a thread. Raises InvalidRequest.

        What only the engine can judge is left to it.
        """
        task = Task(body.task_type) if body.task_type else capabilities.tasks[0]
        speaker, reference, transcript, x_vector_only = None, None, "", False
        if task is Task.NAMED_SPEAKER:
            speaker = _speaker(body.voice, capabilities)
        elif task is Task.VOICE_CLONE:
            reference, transcript = self._clip_and_transcript(body)
            follow = bool(body.ref_text) if body.x_vector_only_mode is None else not body.x_vector_only_mode
            x_vector_only = not follow
        return SpeechRequest(
            text=body.input,
            task=task,
            language=_language(body.language, capabilities),
            speaker=speaker,
            reference=reference,
            transcript="" if x_vector_only else transcript,
            x_vector_only=x_vector_only,
            instruction=(body.instructions or "").strip(),
            seed=body.seed,
            max_frames=body.max_new_tokens,
            first_chunk_frames=body.initial_codec_chunk_frames,
            stream=body.is_streaming(),
        )

    def _clip_and_transcript(self, body: SpeechBody) -> tuple[ReferenceClip, str]:
        given = body.ref_audio
        if given and given.startswith("data:"):
            return load_reference_clip(_decoded(given)), body.ref_text or ""
        if given and given.startswith(("http://", "https://")):
            return load_reference_clip(self._fetched(given)), body.ref_text or ""
        if given and ":" in given:
            raise InvalidRequest("The clip must be a data URL, or the name of a saved voice.", "reference")
        voice = self._stored(given or body.voice, "reference" if given else "voice")
        clip = self._preset_clip if isinstance(voice, PresetVoice) else load_reference_clip
        return clip(voice.audio_path), body.ref_text or voice.transcript

    def _stored_voices(self) -> list[StoredVoice]:
        return [*self.presets, *self.saved.all()]

    def _stored(self, name: str | None, param: str) -> StoredVoice:
        voice: StoredVoice | None
        if not name or name.casefold() == DEFAULT_VOICE:
            voice = next(iter(self._stored_voices()), None)
        else:
            voice = self._preset(name) or self.saved.find(name)
        if voice is None:
            known = ", ".join(self.names(None)) or "none yet: save one, or send a clip as ref_audio"
            raise InvalidRequest(f"There is no voice named {name!r}; the voices are {known}.", param)
        return voice

    def _preset(self, name: str) -> PresetVoice | None:
        return next((voice for voice in self.presets if voice.name.casefold() == name.casefold()), None)

    def _fetched(self, url: str) -> bytes:
        try:
            host = httpx.URL(url).host.lower()
        except httpx.InvalidURL as error:
            raise InvalidRequest("The clip's URL is not a valid one.", "reference") from error
        if host not in self._media_domains:
            raise InvalidRequest(
                "This server fetches no clips from there; send the clip itself, as a data URL.", "reference"
            )
        try:
            # No redirects: they could lead to a host that is not allowed.
            with httpx.stream("GET", url, timeout=FETCH_TIMEOUT_S, follow_redirects=False) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise InvalidRequest(
                        f"The clip's host answered with status {answer.status_code}.", "reference"
                    )
                data = bytearray()
                for piece in answer.iter_bytes():
                    data += piece
                    if len(data) > MAX_FILE_BYTES:
                        break  # the reader of the clip refuses it
        except httpx.HTTPError as error:
            raise InvalidRequest("The clip could not be fetched from its URL.", "reference") from error
        return bytes(data)


def _decoded(data_url: str) -> bytes:
    head, comma, data = data_url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidRequest("The clip's data URL must be base64: data:audio/wav;base64,...", "reference")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("The clip's data URL is not valid base64.", "reference") from error


def _speaker(name: str | None, capabilities: Capabilities) -> str | None:
    if not name or name.casefold() == DEFAULT_VOICE:
        return next(iter(capabilities.speakers), None)
    return next((known for known in capabilities.speakers if known.casefold() == name.casefold()), name)


def _language(name: str | None, capabilities: Capabilities) -> str:
    if not name:
        return "Auto"
    return next((known for known in capabilities.languages if known.casefold() == name.casefold()), name)
