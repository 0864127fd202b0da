"""Clips from URLs: only from hosts that are allowed, and only so much."""

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from backend.reference_audio import MAX_FILE_BYTES
from tests.audio_files import tone, wav
from tests.fakes import FakeSpeechEngine
from tests.serving.conftest import Api, error, listening


async def clip(request: Request) -> Response:
    return Response(wav(tone(2.0)), media_type="audio/wav")


async def elsewhere(request: Request) -> Response:
    return RedirectResponse("/clip.wav")


async def endless(request: Request) -> Response:
    return Response(b"\0" * (MAX_FILE_BYTES + 2**20))


@pytest.fixture(scope="module")
def media() -> Iterator[str]:
    routes = [Route("/clip.wav", clip), Route("/elsewhere", elsewhere), Route("/endless", endless)]
    with listening(Starlette(routes=routes)) as url:
        yield url


def test_a_clip_is_fetched_from_an_allowed_host(media: str, api: Api, engine: FakeSpeechEngine) -> None:
    client = api(allowed_media_domains="127.0.0.1")
    answer = client.post("/v1/audio/speech", json={"input": "Hi", "ref_audio": f"{media}/clip.wav"})
    assert answer.status_code == 200
    reference = engine.requests[0].reference
    assert reference is not None
    assert reference.duration_s == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("domains", "path", "said"),
    [
        (None, "/clip.wav", "fetches no clips from there"),
        ("other.example", "/clip.wav", "fetches no clips from there"),
        ("127.0.0.1", "/elsewhere", "status 307"),
        ("127.0.0.1", "/missing", "status 404"),
        ("127.0.0.1", "/endless", "larger than 10 MB"),
    ],
)
def test_anything_else_is_refused(
    domains: str | None, path: str, said: str, media: str, api: Api, engine: FakeSpeechEngine
) -> None:
    client = api(allowed_media_domains=domains)
    told = error(client.post("/v1/audio/speech", json={"input": "Hi", "ref_audio": f"{media}{path}"}), 400)
    assert told["param"] == "ref_audio"
    assert said in told["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1@elsewhere.example/x", "http://[::1", "http://127.0.0.1:9/x"]
)
def test_tricks_with_urls_lead_nowhere(url: str, api: Api) -> None:
    client = api(allowed_media_domains="127.0.0.1")
    assert error(client.post("/v1/audio/speech", json={"input": "Hi", "ref_audio": url}), 400)["param"] == (
        "ref_audio"
    )
