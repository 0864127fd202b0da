"""Voices that outlive the app, under names that cannot leave their folder."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from backend.contract import InvalidRequest
from backend.reference_audio import load_reference_clip
from backend.serving import saved_voices
from backend.serving.saved_voices import SavedVoices, TooManyVoices, VoiceExists, default_folder
from tests.audio_files import tone, wav
from tests.fakes import FakeSpeechEngine
from tests.serving.conftest import Api, error

CLIP = load_reference_clip(wav(tone(2.0)))


def save(client: TestClient, name: str = "Ann", **form: str) -> httpx.Response:
    return client.post(
        "/v1/audio/voices",
        data={"name": name, "consent": "Ann's own; she agreed on 3 May.", **form},
        files={"audio_sample": ("clip.wav", wav(tone(2.0)))},
    )


def test_a_voice_is_saved_listed_spoken_with_and_deleted(api: Api, engine: FakeSpeechEngine) -> None:
    client = api()
    saved = save(client, ref_text="A tone.", speaker_description="Pure.").json()
    assert saved["success"] is True
    voice = saved["voice"]
    assert (voice["name"], voice["ref_text"], voice["speaker_description"]) == ("Ann", "A tone.", "Pure.")
    assert voice["duration_s"] == pytest.approx(2.0, abs=0.05)
    listed = client.get("/v1/audio/voices").json()
    assert listed["voices"][-1] == "Ann"
    assert listed["uploaded_voices"] == [voice]

    for asked in ({"voice": "ann"}, {"ref_audio": "Ann"}, {"voice": "Ann", "x_vector_only_mode": False}):
        assert client.post("/v1/audio/speech", json={"input": "Hi", **asked}).status_code == 200
    assert [request.transcript for request in engine.requests] == ["", "", "A tone."]
    clip = engine.requests[0].reference
    assert clip is not None
    np.testing.assert_allclose(clip.samples, CLIP.samples, atol=1e-4)

    assert client.delete("/v1/audio/voices/Ann").json()["success"] is True
    assert client.get("/v1/audio/voices").json()["uploaded_voices"] == []
    error(client.delete("/v1/audio/voices/Ann"), 404)
    error(client.post("/v1/audio/speech", json={"input": "Hi", "voice": "Ann"}), 400)


def test_saved_voices_survive_a_restart(api: Api) -> None:
    first = save(api()).json()["voice"]
    save(api(), "Bo")
    again = api().get("/v1/audio/voices").json()["uploaded_voices"]
    assert [voice["name"] for voice in again] == ["Ann", "Bo"]
    assert again[0] == first


@pytest.mark.parametrize("name", ["emma", "EMMA ", "default"])
def test_the_apps_own_names_are_taken(name: str, api: Api) -> None:
    assert error(save(api(), name), 409)["param"] == "name"


def test_a_name_is_saved_once_and_a_preset_stays(api: Api) -> None:
    client = api()
    save(client)
    assert error(save(client, "ann"), 409)["code"] == "conflict"
    error(client.delete("/v1/audio/voices/emma"), 403)


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"name": ""}, "name"),
        ({"name": "../../etc/passwd"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"consent": " "}, "consent"),
        ({"consent": "x" * 501}, "consent"),
        ({"ref_text": "x" * 1001}, "ref_text"),
        ({"audio_sample": b"no audio"}, "audio_sample"),
        ({"audio_sample": wav(tone(0.2))}, "audio_sample"),
        ({"audio_sample": None}, "audio_sample"),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_written(
    changed: dict[str, Any], param: str, api: Api, tmp_path: Path
) -> None:
    form = {"name": "Ann", "consent": "Her own.", "audio_sample": wav(tone(2.0)), **changed}
    clip = form.pop("audio_sample")
    answer = api().post("/v1/audio/voices", data=form, files={"audio_sample": clip} if clip else None)
    assert error(answer, 400)["param"] == param
    assert list(tmp_path.rglob("*.*")) == []


@pytest.mark.parametrize("name", ["../x", "..", "con", ".hidden", "a" * 64, "日本語の声", "O'Neil", "a%2fb"])
def test_no_name_leaves_the_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner" / "voices"
    store = SavedVoices(folder)
    try:
        store.save(name, CLIP, "Mine.")
        assert SavedVoices(folder).find(name) is not None
    except InvalidRequest:
        pass
    store.delete(name)
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert written == set()
    assert {path.parent for path in written} <= {folder}


def test_files_stay_in_the_folder_and_are_whole(tmp_path: Path) -> None:
    store = SavedVoices(tmp_path / "voices")
    store.save("声 1", CLIP, "Mine.", transcript="Hi.")
    files = sorted(path.suffix for path in (tmp_path / "voices").iterdir())
    assert files == [".flac", ".json"]
    described = json.loads(next((tmp_path / "voices").glob("*.json")).read_text())
    assert (described["name"], described["consent"], described["transcript"]) == ("声 1", "Mine.", "Hi.")


def test_what_is_not_a_voice_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Imports of vLLM-Omni by other tests leave the root logger at ERROR.
    caplog.set_level("WARNING")
    store = SavedVoices(tmp_path)
    store.save("good", CLIP, "Mine.")
    store.save("lost", CLIP, "Mine.").audio_path.unlink()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("[1]")
    described = json.loads(store.find("good").audio_path.with_suffix(".json").read_text())  # type: ignore[union-attr]
    for number, changed in enumerate(
        ({"name": 5}, {"name": None}, {"transcript": ["x"]}, {"duration_s": "x"})
    ):
        (tmp_path / f"edited{number}.json").write_text(json.dumps(described | changed))
        (tmp_path / f"edited{number}.flac").write_bytes(b"")
    assert [voice.name for voice in SavedVoices(tmp_path).all()] == ["good"]
    assert len(caplog.records) == 7


def test_there_is_an_end_to_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_voices, "MAX_VOICES", 1)
    store = SavedVoices(tmp_path)
    store.save("one", CLIP, "Mine.")
    with pytest.raises(VoiceExists):
        store.save("ONE", CLIP, "Mine.")
    with pytest.raises(TooManyVoices):
        store.save("two", CLIP, "Mine.")


def test_the_default_folder_is_in_the_users_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "qwen3-tts-demo" / "voices"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_folder() == Path.home() / ".local/share/qwen3-tts-demo/voices"
