"""Voices that clients save: a clip and a note on whose it is, kept in a folder over restarts."""

import hashlib
import json
import logging
import os
import re
import threading
import time
import unicodedata
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile
from pydantic import TypeAdapter

from backend.contract import InvalidRequest, ReferenceClip
from backend.prompt import MAX_TRANSCRIPT_CHARS

logger = logging.getLogger(__name__)

MAX_VOICES = 200
MAX_NOTE_CHARS = 500
_NAME = re.compile(r"\w[\w .'-]{0,62}\w|\w")
_PROJECT = "qwen3-tts-demo"


class VoiceExists(Exception):
    """The name is taken."""


class TooManyVoices(Exception):
    """The folder holds as many voices as it may."""


@dataclass(frozen=True)
class SavedVoice:
    """A voice and where its clip is: 24 kHz mono FLAC. `created_at` is in Unix seconds."""

    name: str
    consent: str
    transcript: str
    description: str
    created_at: int
    duration_s: float
    audio_path: Path


# A file that somebody else has written may have anything in it.
_AS_SAVED = TypeAdapter(SavedVoice)


class SavedVoices:
    """Voices by name, whatever its case; thread-safe. Nothing is read or made before the first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._voices: dict[str, SavedVoice] | None = None

    def all(self) -> list[SavedVoice]:
        """In the order they were saved."""
        with self._lock:
            return list(self._loaded().values())

    def find(self, name: str) -> SavedVoice | None:
        with self._lock:
            return self._loaded().get(_key(name))

    def save(
        self, name: str, clip: ReferenceClip, consent: str, transcript: str = "", description: str = ""
    ) -> SavedVoice:
        """Raises InvalidRequest for a bad name or note, VoiceExists, TooManyVoices, or OSError."""
        name, consent = _checked_name(name), " ".join(consent.split())
        if not consent:
            raise InvalidRequest("Say whose voice this is and that they agreed to its use.", "consent")
        for text, limit, param in (
            (consent, MAX_NOTE_CHARS, "consent"),
            (description, MAX_NOTE_CHARS, "speaker_description"),
            (transcript, MAX_TRANSCRIPT_CHARS, "ref_text"),
        ):
            if len(text) > limit:
                raise InvalidRequest(f"Shorten this to {limit:,} characters.", param)
        with self._lock:
            voices = self._loaded()
            if _key(name) in voices:
                raise VoiceExists
            if len(voices) >= MAX_VOICES:
                raise TooManyVoices
            path = self._path(name)
            voice = SavedVoice(
                name,
                consent,
                transcript.strip(),
                description.strip(),
                int(time.time()),
                round(clip.duration_s, 3),
                path.with_suffix(".flac"),
            )
            self._write(voice, clip)
            voices[_key(name)] = voice
        return voice

    def delete(self, name: str) -> bool:
        """Whether there was such a voice."""
        with self._lock:
            voice = self._loaded().pop(_key(name), None)
            if voice is None:
                return False
            # The description first: a clip alone is no voice.
            voice.audio_path.with_suffix(".json").unlink(missing_ok=True)
            voice.audio_path.unlink(missing_ok=True)
        return True

    def _path(self, name: str) -> Path:
        # A hash cannot leave the folder, nor meet a file system's rules on names.
        return self._folder / hashlib.sha256(_key(name).encode()).hexdigest()[:32]

    def _write(self, voice: SavedVoice, clip: ReferenceClip) -> None:
        """Each file appears whole or not at all, and the clip before its description."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        samples = np.rint(np.clip(clip.samples, -1, 1) * 32767).astype(np.int16)
        part = voice.audio_path.with_suffix(".part")
        soundfile.write(part, samples, clip.sample_rate_hz, format="FLAC", subtype="PCM_16")
        os.replace(part, voice.audio_path)
        told = {key: value for key, value in asdict(voice).items() if key != "audio_path"}
        part.write_text(json.dumps(told, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        os.replace(part, voice.audio_path.with_suffix(".json"))

    def _loaded(self) -> dict[str, SavedVoice]:
        if self._voices is None:
            found = [voice for path in self._folder.glob("*.json") if (voice := _read(path)) is not None]
            found.sort(key=lambda voice: (voice.created_at, voice.name))
            self._voices = {_key(voice.name): voice for voice in found}
        return self._voices


def default_folder() -> Path:
    """$XDG_DATA_HOME/qwen3-tts-demo/voices, or the same in ~/.local/share."""
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / _PROJECT / "voices"


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip().casefold()


def _checked_name(name: str) -> str:
    name = unicodedata.normalize("NFC", name).strip()
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A voice's name is 1 to 64 letters, digits, spaces or any of . ' _ -, "
            "with a letter or digit at both ends.",
            "name",
        )
    return name


def _read(path: Path) -> SavedVoice | None:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        voice = _AS_SAVED.validate_python({**told, "audio_path": path.with_suffix(".flac")})
    except (OSError, ValueError, TypeError) as error:
        logger.warning("%s is not a saved voice and is left alone: %s", path, error)
        return None
    if not voice.audio_path.is_file():
        logger.warning("The saved voice %s has lost its clip and is left alone.", path)
        return None
    return voice
