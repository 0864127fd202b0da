import re
from pathlib import Path

import pytest
import soundfile
import yaml

from backend.contract import ReferenceClip
from backend.reference_audio import load_reference_clip
from backend.voices import VOICES_FOLDER, PresetVoice, VoiceManifestError, keeping_presets, load_preset_voices
from tests.audio_files import tone, wav

ENTRY = {
    "name": "anna",
    "label": "Anna (Scottish woman)",
    "description": "Bright",
    "file": "anna.wav",
    "transcript": "Good morning.",
    "licence": "CC0-1.0",
    "source": "a friend",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "anna.wav").write_bytes(wav(tone(2.0)))
    return tmp_path


def load(folder: Path, *entries: object) -> list[PresetVoice]:
    (folder / "voices.yaml").write_text(yaml.safe_dump(list(entries)), encoding="utf-8")
    return load_preset_voices(folder)


def refusal(folder: Path, *entries: object) -> str:
    with pytest.raises(VoiceManifestError) as caught:
        load(folder, *entries)
    return str(caught.value)


@pytest.mark.parametrize("voice", load_preset_voices(), ids=lambda voice: voice.name)
def test_a_bundled_clip_is_short_clean_and_as_long_as_its_transcript_takes(voice: PresetVoice) -> None:
    info = soundfile.info(voice.audio_path)
    assert (info.samplerate, info.channels) == (24000, 1)
    assert voice.audio_path.stat().st_size < 200_000
    clip = load_reference_clip(voice.audio_path)
    assert 2.5 <= clip.duration_s <= 7.5
    assert clip.duration_s == pytest.approx(info.duration, abs=0.05)  # nothing left to trim
    assert abs(clip.samples).max() < 0.95
    # English is spoken at 10 to 20 characters a second; a transcript of another clip would rarely fit.
    assert 10 <= len(voice.transcript) / clip.duration_s <= 20


def test_the_bundled_voices_are_listed_with_people_and_every_licence_is_documented() -> None:
    voices = load_preset_voices()
    assert [voice.name for voice in voices] == [
        "clara",
        "hugo",
        "nora",
        "pia",
        "emma",
        "michael",
        "george",
        "arctic",
        "reader",
    ]
    assert voices[0].label == "Clara (American woman)"
    readme = (VOICES_FOLDER.parent / "README.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(\w+\.flac)`", readme))
    assert documented == {voice.audio_path.name for voice in voices}
    assert documented == {path.name for path in VOICES_FOLDER.glob("*.flac")}


def test_a_folder_without_a_manifest_has_no_voices(tmp_path: Path) -> None:
    assert load_preset_voices(tmp_path) == []


def test_a_voice_is_read_from_its_entry(folder: Path) -> None:
    [voice] = load(folder, ENTRY | {"transcript": " Good morning.\n"})
    assert voice == PresetVoice(
        "anna", "Anna (Scottish woman)", "Bright", folder / "anna.wav", "Good morning.", "CC0-1.0"
    )


@pytest.mark.parametrize("key", ENTRY)
@pytest.mark.parametrize("value", [None, "", "  ", 5])
def test_a_bad_value_is_refused_by_file_voice_and_key(folder: Path, key: str, value: object) -> None:
    message = refusal(folder, ENTRY | {key: value})
    assert "voices.yaml: voice 1: " + key in message


def test_an_unknown_key_is_refused(folder: Path) -> None:
    assert "voice 1: gender: unknown key" in refusal(folder, ENTRY | {"gender": "f"})


def test_a_missing_clip_is_refused_by_name(folder: Path) -> None:
    assert 'voice 1: file: no file "berta.wav"' in refusal(folder, ENTRY | {"file": "berta.wav"})


def test_a_clip_outside_the_folder_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("elsewhere") / "secret.wav"
    outside.write_bytes(wav(tone(2.0)))
    assert "voice 1: file: no file" in refusal(folder, ENTRY | {"file": str(outside)})
    assert "voice 1: file: no file" in refusal(
        folder, ENTRY | {"file": f"../{outside.parent.name}/secret.wav"}
    )


def test_two_voices_of_one_name_are_refused(folder: Path) -> None:
    assert 'voice 2: name: "anna" is taken' in refusal(folder, ENTRY, ENTRY)


@pytest.mark.parametrize(
    "text", ["name: anna", "- anna", "[", "\x00"], ids=["mapping", "text", "broken", "binary"]
)
def test_a_manifest_that_is_no_list_of_voices_is_refused(folder: Path, text: str) -> None:
    (folder / "voices.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(VoiceManifestError, match=r"voices\.yaml"):
        load_preset_voices(folder)


def test_a_preset_is_decoded_once_and_a_visitor_s_clip_is_not_kept(folder: Path) -> None:
    (own := folder / "own.wav").write_bytes(wav(tone(1.5)))
    decoded: list[Path] = []

    def decode(path: Path) -> ReferenceClip:
        decoded.append(path)
        return load_reference_clip(path)

    (anna,) = load(folder, ENTRY)
    load_clip = keeping_presets([anna], decode)
    clips = [load_clip(path) for path in (anna.audio_path, own, anna.audio_path, own)]
    assert decoded == [anna.audio_path, own, own]
    assert [round(clip.duration_s, 1) for clip in clips] == [2.0, 1.5, 2.0, 1.5]
