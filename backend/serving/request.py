"""From the API's body to a SpeechRequest: which voice is meant, and its clip."""

import asyncio
import base64
import binascii
from collections.abc import Sequence

from backend.contract import Capabilities, InvalidRequest, ReferenceClip, SpeechRequest, Task
from backend.reference_audio import load_reference_clip
from backend.serving.remote_clips import RemoteClips, is_url
from backend.serving.saved_voices import SavedVoice, SavedVoices
from backend.serving.schema import SpeechBody
from backend.voices import ClipLoader, PresetVoice

# vLLM-Omni's name of whichever voice comes first.
DEFAULT_VOICE = "default"

StoredVoice = PresetVoice | SavedVoice


class VoiceChoice:
    """The voices a request may name, and the requests that name them."""

    def __init__(
        self,
        presets: Sequence[PresetVoice],
        saved: SavedVoices,
        load_clip: ClipLoader,
        media_domains: Sequence[str] = (),
    ) -> None:
        self.presets = tuple(presets)
        self.saved = saved
        self._remote_clips = RemoteClips(media_domains)
        self._load_clip = load_clip

    def names(self, capabilities: Capabilities | None) -> list[str]:
        """Every name that the loaded checkpoint can speak with; clones where it is not known yet."""
        if capabilities is None or Task.VOICE_CLONE in capabilities.tasks:
            return [voice.name for voice in self._stored_voices()]
        return list(capabilities.speakers)

    def is_preset(self, name: str) -> bool:
        return self._preset(name) is not None

    async def request(self, body: SpeechBody, capabilities: Capabilities) -> SpeechRequest:
        """Fetches and decodes the reference clip. Raises InvalidRequest.

        What only the engine can judge is left to it.
        """
        url = body.ref_audio
        fetched = await self._remote_clips.fetch(url) if url and is_url(url) else None
        return await asyncio.to_thread(self._request, body, capabilities, fetched)

    def _request(self, body: SpeechBody, capabilities: Capabilities, fetched: bytes | None) -> SpeechRequest:
        task = _task(body, capabilities)
        speaker, reference, transcript, x_vector_only = None, None, "", False
        if task is Task.NAMED_SPEAKER:
            speaker = _speaker(body.voice, capabilities)
        elif task is Task.VOICE_CLONE:
            reference, transcript = self._clip_and_transcript(body, fetched)
            follow = _follows_the_clip(body, capabilities)
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
            temperature=body.temperature,
            top_k=body.top_k,
            predictor_temperature=body.predictor_temperature,
            predictor_top_k=body.predictor_top_k,
            max_frames=body.max_new_tokens,
            first_chunk_frames=body.initial_codec_chunk_frames,
            stream=body.is_streaming(),
        )

    def _clip_and_transcript(self, body: SpeechBody, fetched: bytes | None) -> tuple[ReferenceClip, str]:
        given = body.ref_audio
        if fetched is not None:
            return load_reference_clip(fetched), body.ref_text or ""
        if given and given.startswith("data:"):
            return load_reference_clip(_decoded(given)), body.ref_text or ""
        if given and ":" in given:
            raise InvalidRequest("The clip must be a data URL, or the name of a saved voice.", "reference")
        voice = self._stored(given or body.voice, "reference" if given else "voice")
        return self._load_clip(voice.audio_path), body.ref_text or voice.transcript

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


def _task(body: SpeechBody, capabilities: Capabilities) -> Task:
    """The one asked for, or the model's first; but a voice that is named or sent is one to clone."""
    if body.task_type:
        return Task(body.task_type)
    names_voice = bool(body.ref_audio) or (body.voice or DEFAULT_VOICE).casefold() != DEFAULT_VOICE
    if names_voice and Task.VOICE_CLONE in capabilities.tasks:
        return Task.VOICE_CLONE
    return capabilities.tasks[0]


def _follows_the_clip(body: SpeechBody, capabilities: Capabilities) -> bool:
    if body.x_vector_only_mode is not None:
        return not body.x_vector_only_mode
    return bool(body.ref_text) or not capabilities.supports_x_vector


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
