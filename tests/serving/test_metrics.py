import time
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import FakeSpeechEngine
from tests.serving.conftest import Api, api_app, listening


def figures(text: str) -> dict[str, float]:
    """Every sample by its name and labels; the text must be Prometheus's format."""
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_runs_and_answers_are_counted(api: Api, engine: FakeSpeechEngine) -> None:
    client = api()
    before = figures(client.get("/metrics").text)
    assert before["tts_runs_total finish_reason=stop"] == 0
    assert (before["tts_ready"], before["tts_running"], before["tts_queued"]) == (1, 0, 0)
    client.post("/v1/audio/speech", json={"input": "Hi"})
    client.post("/v1/audio/speech", json={"input": "Hi", "max_new_tokens": 10})
    client.post("/v1/audio/speech", json={"input": ""})
    engine.fail_after_chunks = 1
    client.post("/v1/audio/speech", json={"input": "Hi", "stream": True})
    client.get("/v1/made-up-by-the-client")
    after = figures(client.get("/metrics").text)
    ended = {
        reason: after[f"tts_runs_total finish_reason={reason}"] for reason in ("stop", "length", "failed")
    }
    assert ended == {"stop": 1, "length": 1, "failed": 1}
    assert (after["tts_ttfa_seconds_count"], after["tts_rtf_count"]) == (3, 2)
    assert after["tts_audio_seconds_total"] > 3.2 + 0.8
    speech = "tts_http_requests_total method=POST path=/v1/audio/speech status="
    assert (after[f"{speech}200"], after[f"{speech}400"]) == (3, 1)
    assert after["tts_http_requests_total method=GET path=other status=404"] == 1


def test_an_abort_is_counted_and_running_is_seen(engine: FakeSpeechEngine, tmp_path: Any) -> None:
    engine.rtf, engine.frames = 1.0, 200
    body = {"input": "Hi", "response_format": "pcm", "stream": True}
    with listening(api_app(engine, tmp_path)) as url:
        with httpx.stream("POST", f"{url}/v1/audio/speech", json=body) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            assert figures(httpx.get(f"{url}/metrics").text)["tts_running"] == 1
        given_up_at = time.monotonic() + 20
        while (now := figures(httpx.get(f"{url}/metrics").text))["tts_running"]:
            assert time.monotonic() < given_up_at
    assert now["tts_runs_total finish_reason=aborted"] == 1
