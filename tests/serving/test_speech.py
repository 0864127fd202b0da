"""POST /v1/audio/speech on the fake engine: what reaches the engine, and what comes back."""

import base64
import io
import json
import time
import wave
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from backend.contract import Task
from tests.audio_files import tone, wav
from tests.fakes import NAMED_SPEAKERS, SAMPLE_RATE_HZ, TEXT_OR_CLIP, VOICE_DESIGN, FakeSpeechEngine, noise
from tests.serving.conftest import VOICES, Api, api_app, error, listening

CLIP = "data:audio/wav;base64," + base64.b64encode(wav(tone(2.0))).decode()


def speak(client: TestClient, **body: Any) -> httpx.Response:
    return client.post("/v1/audio/speech", json={"input": "Hello there.", **body})


def test_only_the_text_is_needed(api: Api, engine: FakeSpeechEngine) -> None:
    answer = speak(api())
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/wav")
    with wave.open(io.BytesIO(answer.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    np.testing.assert_array_equal(samples, engine.runs[0].pcm)
    request = engine.requests[0]
    assert (request.text, request.task, request.language) == ("Hello there.", Task.VOICE_CLONE, "Auto")
    assert (request.stream, request.x_vector_only, request.seed) == (False, True, None)
    assert answer.headers["x-seed"] == str(engine.runs[0].seed)
    assert answer.headers["x-request-id"] == engine.runs[0].request_id
    assert answer.headers["x-sample-rate"] == str(SAMPLE_RATE_HZ)


def test_every_field_reaches_the_engine(api: Api, engine: FakeSpeechEngine) -> None:
    answer = speak(
        api(),
        model="tts-1",
        voice={"id": "Michael"},
        response_format="pcm",
        task_type="Base",
        language="english",
        x_vector_only_mode=False,
        seed=5,
        max_new_tokens=20,
        initial_codec_chunk_frames=2,
        stream=True,
        temperature=0.5,
        top_k=9,
        predictor_temperature=0.0,
        predictor_top_k=7,
    )
    assert answer.status_code == 200
    request = engine.requests[0]
    assert (request.language, request.seed, request.max_frames) == ("English", 5, 20)
    assert (request.first_chunk_frames, request.stream) == (2, True)
    assert (request.temperature, request.top_k) == (0.5, 9)
    assert (request.predictor_temperature, request.predictor_top_k) == (0.0, 7)
    michael = next(voice for voice in VOICES if voice.name == "michael")
    assert (request.transcript, request.x_vector_only) == (michael.transcript, False)


@pytest.mark.parametrize("name", [None, "default", "clara", "CLARA"])
def test_a_preset_voice_is_found_by_any_case_of_its_name(
    name: str | None, api: Api, engine: FakeSpeechEngine
) -> None:
    assert speak(api(), voice=name).status_code == 200
    reference = engine.requests[0].reference
    assert reference is not None
    assert reference.duration_s > 1


def test_a_clip_wins_over_a_voice_and_its_transcript_asks_for_its_delivery(
    api: Api, engine: FakeSpeechEngine
) -> None:
    client = api()
    speak(client, voice="nobody at all", ref_audio=CLIP)
    speak(client, ref_audio=CLIP, ref_text="A tone.")
    speak(client, references=[{"audio_path": CLIP, "text": "A tone."}], x_vector_only_mode=True)
    durations = [request.reference.duration_s for request in engine.requests if request.reference]
    assert durations == pytest.approx([2.0] * 3, abs=0.05)
    assert [(r.x_vector_only, r.transcript) for r in engine.requests] == [
        (True, ""),
        (False, "A tone."),
        (True, ""),
    ]


@pytest.mark.parametrize(("voice", "speaker"), [(None, "Vivian"), ("default", "Vivian"), ("ryan", "Ryan")])
def test_a_checkpoint_with_speakers_speaks_with_them(voice: str | None, speaker: str, api: Api) -> None:
    engine = FakeSpeechEngine(NAMED_SPEAKERS, ttfa_s=0.0, rtf=0.01)
    assert speak(api(engine), voice=voice, instructions=" Calmly. ").status_code == 200
    request = engine.requests[0]
    assert (request.speaker, request.reference, request.instruction) == (speaker, None, "Calmly.")


def test_a_voice_that_is_named_or_sent_is_cloned_where_text_alone_would_do(api: Api) -> None:
    engine = FakeSpeechEngine(TEXT_OR_CLIP, ttfa_s=0.0, rtf=0.01)
    client = api(engine)
    for asked in ({}, {"voice": "default"}, {"voice": "clara"}, {"ref_audio": CLIP, "ref_text": "A tone."}):
        assert speak(client, **asked).status_code == 200
    assert [request.task for request in engine.requests] == [Task.TEXT_ONLY] * 2 + [Task.VOICE_CLONE] * 2
    clara = next(voice for voice in VOICES if voice.name == "clara")
    assert [(r.transcript, r.x_vector_only) for r in engine.requests[2:]] == [
        (clara.transcript, False),
        ("A tone.", False),
    ]
    assert "clara" in client.get("/v1/audio/voices").json()["voices"]


def test_a_voice_is_designed_from_instructions(api: Api) -> None:
    engine = FakeSpeechEngine(VOICE_DESIGN, ttfa_s=0.0, rtf=0.01)
    assert speak(api(engine), voice="alloy", instructions="An old sailor.").status_code == 200
    assert (engine.requests[0].speaker, engine.requests[0].instruction) == (None, "An old sailor.")


@pytest.mark.parametrize("asked", [{"stream": True}, {"stream_format": "audio"}])
def test_pcm_is_streamed_chunk_by_chunk(
    asked: dict[str, Any], engine: FakeSpeechEngine, tmp_path: Any
) -> None:
    engine.rtf = 0.3
    body = {"input": "Hello.", "response_format": "pcm", "seed": 3, **asked}
    with (
        listening(api_app(engine, tmp_path)) as url,
        httpx.stream("POST", f"{url}/v1/audio/speech", json=body) as answer,
    ):
        assert answer.headers["content-type"] == "audio/pcm"
        assert "content-length" not in answer.headers
        pieces = answer.iter_raw()
        data = next(pieces)
        # The rest, nearly a second of work, is still being made.
        assert engine.runs[0].report is None
        assert len(data) <= 4 * 1920 * 2
        data += b"".join(pieces)
    assert data == noise(40, 3).astype("<i2").tobytes()


def test_wav_is_streamed_behind_a_header_of_unknown_length(api: Api, engine: FakeSpeechEngine) -> None:
    answer = speak(api(), stream=True)
    assert answer.headers["content-type"] == "audio/wav"
    header, data = answer.content[:44], answer.content[44:]
    assert (header[:4], header[8:16], header[36:40]) == (b"RIFF", b"WAVEfmt ", b"data")
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    assert int.from_bytes(header[24:28], "little") == 24_000
    assert data == engine.runs[0].pcm.astype("<i2").tobytes()


def test_streamed_speech_can_be_faster(api: Api, engine: FakeSpeechEngine) -> None:
    answer = speak(api(), stream=True, response_format="pcm", speed=2.0)
    assert len(answer.content) / 2 == pytest.approx(len(engine.runs[0].pcm) / 2, abs=0.05 * SAMPLE_RATE_HZ)


def test_events_carry_the_samples_and_end_with_done(api: Api, engine: FakeSpeechEngine) -> None:
    answer = speak(api(), stream_format="sse", response_format="pcm")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [event.split("\n") for event in answer.text.strip().split("\n\n")]
    contents = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert all(
        name == f"event: {content['type']}" for (name, _), content in zip(events, contents, strict=True)
    )
    assert [content["type"] for content in contents] == [*["speech.audio.delta"] * 5, "speech.audio.done"]
    samples = b"".join(base64.b64decode(content["audio"]) for content in contents[:-1])
    assert samples == engine.runs[0].pcm.astype("<i2").tobytes()
    assert contents[-1]["usage"] == {"output_tokens": 40}


@pytest.mark.parametrize(
    ("stream", "ttfa_s"),
    [(True, 0.0), (True, 30.0), (False, 30.0)],
    ids=["in the middle", "before the first chunk", "not streamed"],
)
def test_a_client_that_leaves_ends_the_run(
    stream: bool, ttfa_s: float, engine: FakeSpeechEngine, tmp_path: Any
) -> None:
    engine.rtf, engine.ttfa_s, engine.frames = 1.0, ttfa_s, 200
    body = {"input": "Hello.", "response_format": "pcm", "stream": stream}
    with listening(api_app(engine, tmp_path)) as url:
        if not ttfa_s:
            with httpx.stream("POST", f"{url}/v1/audio/speech", json=body) as answer:
                pieces = answer.iter_raw()
                next(pieces)
                assert len(engine.accepted) == 1
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/v1/audio/speech", json=body, timeout=0.3)
        deadline = time.monotonic() + 2
        while engine.accepted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.accepted == []
        assert engine.runs[0].closed
        # And the next one is served.
        engine.rtf, engine.ttfa_s, engine.frames = 0.01, 0.0, 8
        assert httpx.post(f"{url}/v1/audio/speech", json=body).status_code == 200


def test_a_stream_that_fails_breaks_off_and_one_that_has_not_begun_is_an_error(
    engine: FakeSpeechEngine, tmp_path: Any
) -> None:
    body = {"input": "Hello.", "response_format": "pcm", "stream": True}
    with listening(api_app(engine, tmp_path)) as url:
        engine.fail_after_chunks = 2
        with httpx.stream("POST", f"{url}/v1/audio/speech", json=body) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()
        engine.fail_after_chunks = 0
        told = error(httpx.post(f"{url}/v1/audio/speech", json=body), 500)
        assert (told["type"], told["message"]) == ("server_error", "The talker stage has died.")
        assert error(httpx.post(f"{url}/v1/audio/speech", json=body | {"stream": False}), 500) == told


def test_an_unexpected_failure_is_an_error_without_its_details(engine: FakeSpeechEngine, api: Api) -> None:
    engine.failure, engine.fail_after_chunks = RuntimeError("/secret/path"), 0
    told = error(speak(api()), 500)
    assert "secret" not in told["message"]


def test_beyond_the_queue_requests_are_told_when_to_come_back(
    engine: FakeSpeechEngine, tmp_path: Any
) -> None:
    engine.max_running, engine.max_waiting, engine.ttfa_s = 1, 0, 30.0
    with listening(api_app(engine, tmp_path)) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/audio/speech", json={"input": "x"}, timeout=0.3)
        # The client has left, but for a moment its place may still be taken.
        engine.accepted.append(engine.runs[0])
        answer = httpx.post(f"{url}/v1/audio/speech", json={"input": "x"})
        assert error(answer, 429)["code"] == "rate_limit_exceeded"
        assert answer.headers["retry-after"] == "5"
