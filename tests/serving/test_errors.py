"""Bad requests: a status, and an error object that names the field."""

from typing import Any

import pytest

from backend.contract import Phase
from backend.serving.guard import MAX_BODY_BYTES
from tests.fakes import FakeSpeechEngine
from tests.serving.conftest import Api, error

TINY = "data:audio/wav;base64,UklGRg=="


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": "x" * 601}, "input"),
        ({"input": "Hi", "voice": "nobody"}, "voice"),
        ({"input": "Hi", "voice": 3}, "voice"),
        ({"input": "Hi", "voice": {"name": "emma"}}, "voice"),
        ({"input": "Hi", "response_format": "ogg"}, "response_format"),
        ({"input": "Hi", "response_format": "mp3", "stream": True}, "response_format"),
        ({"input": "Hi", "speed": 0.1}, "speed"),
        ({"input": "Hi", "stream_format": "video"}, "stream_format"),
        ({"input": "Hi", "task_type": "Singing"}, "task_type"),
        ({"input": "Hi", "language": "Klingon"}, "language"),
        ({"input": "Hi", "seed": 1.5}, "seed"),
        ({"input": "Hi", "seed": 2**70}, "seed"),
        ({"input": "Hi", "temperature": 2.1}, "temperature"),
        ({"input": "Hi", "top_k": 0}, "top_k"),
        ({"input": "Hi", "predictor_temperature": -0.1}, "predictor_temperature"),
        ({"input": "Hi", "predictor_top_k": 5000}, "predictor_top_k"),
        ({"input": "Hi", "max_new_tokens": 0}, "max_new_tokens"),
        ({"input": "Hi", "ref_audio": ["a", "b"]}, "ref_audio"),
        ({"input": "Hi", "ref_audio": "nobody"}, "ref_audio"),
        ({"input": "Hi", "ref_audio": "file:///etc/passwd"}, "ref_audio"),
        ({"input": "Hi", "ref_audio": "http://127.0.0.1/clip.wav"}, "ref_audio"),
        ({"input": "Hi", "ref_audio": "data:audio/wav,plain"}, "ref_audio"),
        ({"input": "Hi", "ref_audio": "data:audio/wav;base64,*"}, "ref_audio"),
        ({"input": "Hi", "ref_audio": TINY}, "ref_audio"),
        ({"input": "Hi", "sample_rate": 8000}, "sample_rate"),
        ({"input": "Hi", "speaker_embedding": [0.5]}, "speaker_embedding"),
        ({"input": "Hi", "word_timestamps": True}, "word_timestamps"),
    ],
)
def test_a_bad_field_is_named(body: dict[str, Any], param: str, api: Api, engine: FakeSpeechEngine) -> None:
    told = error(api().post("/v1/audio/speech", json=body), 400)
    assert (told["param"], told["type"], told["code"]) == (param, "invalid_request_error", "invalid_value")
    assert engine.accepted == []


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (b"{", "application/json", "not valid JSON"),
        (b"", "application/json", "required"),
        (b"[]", "application/json", "JSON object"),
        (b'{"input": "Hi"}', "application/x-www-form-urlencoded", "JSON object"),
        (b"\xff\xfe", "application/json", "body"),
        (b'{"input": "\\ud800"}', "application/json", "surrogate"),
        (b'{"\\ud800": 1}', "application/json", "required"),
    ],
)
def test_a_bad_body_is_an_error(content: bytes, kind: str, said: str, api: Api) -> None:
    answer = api().post("/v1/audio/speech", content=content, headers={"content-type": kind})
    assert said in error(answer, 400)["message"]


def test_another_model_is_not_found(api: Api) -> None:
    told = error(api().post("/v1/audio/speech", json={"input": "Hi", "model": "whisper-1"}), 404)
    assert (told["param"], told["code"]) == ("model", "model_not_found")
    assert "Fake-TTS-Base" in told["message"]


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.WARMING, Phase.FAILED, Phase.CLOSED])
def test_an_engine_that_is_not_ready_is_unavailable(phase: Phase, api: Api, engine: FakeSpeechEngine) -> None:
    engine.phase = phase
    answer = api().post("/v1/audio/speech", json={"input": "Hi"})
    assert error(answer, 503)["code"] == "engine_unavailable"
    assert int(answer.headers["retry-after"]) > 0
    assert api().get("/health").status_code == 503


def test_an_unknown_path_or_method_is_an_error(api: Api) -> None:
    assert error(api().get("/v1/chat/completions"), 404)["code"] == "not_found"
    assert error(api().get("/v1/audio/speech"), 405)["code"] == "method_not_allowed"


@pytest.mark.parametrize("told_length", [True, False])
def test_a_body_that_is_too_large_is_refused(told_length: bool, api: Api) -> None:
    body = b'{"input": "' + b"x" * MAX_BODY_BYTES + b'"}'
    content = body if told_length else iter([body[: len(body) // 2], body[len(body) // 2 :]])
    answer = api().post("/v1/audio/speech", content=content, headers={"content-type": "application/json"})
    assert error(answer, 413)["code"] == "body_too_large"


def test_models_are_listed_in_openais_shape(api: Api) -> None:
    listed = api().get("/v1/models").json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert (model["id"], model["object"]) == ("Fake-TTS-Base", "model")
    assert api().get("/v1/models/Fake-TTS-Base").json()["id"] == model["id"]
    assert error(api().get("/v1/models/other"), 404)["code"] == "model_not_found"
