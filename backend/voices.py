"""The preset voices for cloning: clips in a folder, listed in its voices.yaml."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

from backend.contract import ReferenceClip

VOICES_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "voices"
_MANIFEST = "voices.yaml"
_KEYS = ("name", "label", "description", "file", "transcript", "licence", "source")

ClipLoader = Callable[[Path], ReferenceClip]


@dataclass(frozen=True)
class PresetVoice:
    """A voice that can be cloned without an upload; `transcript` is what its clip says."""

    name: str
    label: str
    description: str
    audio_path: Path
    transcript: str
    licence: str


class VoiceManifestError(ValueError):
    """voices.yaml is wrong; the message names the file, the voice and the key."""


def load_preset_voices(folder: Path = VOICES_FOLDER) -> list[PresetVoice]:
    """The voices of `folder` in the manifest's order; an empty list where there is no manifest.

    Clips are checked to exist, not decoded. Raises VoiceManifestError.
    """
    manifest = folder / _MANIFEST
    if not manifest.is_file():
        return []
    try:
        entries = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise VoiceManifestError(f"{manifest}: not a YAML file: {error}") from error
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise VoiceManifestError(f"{manifest}: must be a list of voices, each with {', '.join(_KEYS)}")
    voices: list[PresetVoice] = []
    for position, entry in enumerate(entries, start=1):
        voice = _preset_voice(folder, entry, f"{manifest}: voice {position}")
        if any(voice.name == other.name for other in voices):
            raise VoiceManifestError(
                f'{manifest}: voice {position}: name: "{voice.name}" is taken by another voice'
            )
        voices.append(voice)
    return voices


def keeping_presets(voices: Sequence[PresetVoice], load_clip: ClipLoader) -> ClipLoader:
    """`load_clip`, but each preset's clip is decoded once. People's own clips are not kept."""
    presets = {voice.audio_path for voice in voices}
    load_preset = lru_cache(maxsize=None)(load_clip)
    return lambda path: load_preset(path) if path in presets else load_clip(path)


def _preset_voice(folder: Path, entry: object, where: str) -> PresetVoice:
    if not isinstance(entry, dict):
        raise VoiceManifestError(f"{where}: must be a mapping with {', '.join(_KEYS)}")
    unknown = [str(key) for key in entry if key not in _KEYS]
    if unknown:
        raise VoiceManifestError(f"{where}: {unknown[0]}: unknown key; allowed are {', '.join(_KEYS)}")
    for key in _KEYS:
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise VoiceManifestError(f"{where}: {key}: must be a text that is not empty")
    # Only files beside the manifest: the page serves them to anyone.
    audio_path = folder / Path(entry["file"]).name
    if entry["file"] != audio_path.name or not audio_path.is_file():
        raise VoiceManifestError(f'{where}: file: no file "{entry["file"]}" in {folder}')
    return PresetVoice(
        name=entry["name"],
        label=entry["label"],
        description=entry["description"],
        audio_path=audio_path,
        transcript=entry["transcript"].strip(),
        licence=entry["licence"],
    )
