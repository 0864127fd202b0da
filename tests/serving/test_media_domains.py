"""Clips from URLs: only from hosts that are allowed, and only so much."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.reference_audio import MAX_FILE_BYTES
from backend.serving import remote_clips
from tests.audio_files import tone, wav
from tests.fakes import FakeSpeechEngine
from tests.serving.conftest import Api, error, listening


async def clip(request: Request) -> Response:
    return Response(wav(tone(2.0)), media_type="audio/wav")


async def elsewhere(request: Request) -> Response:
    return RedirectResponse("/clip.wav")


async def endless(request: Request) -> Response:
    return Response(b"\0" * (MAX_FILE_BYTES + 2**20))


async def dribbling(request: Request) -> Response:
    """Always sending, so that no pause is ever long enough to give up on."""

    async def bytes_of_it() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"\0"
            await asyncio.sleep(0.05)

    return StreamingResponse(bytes_of_it())


async def silent(request: Request) -> Response:
    await asyncio.sleep(10)
    return Response()


@pytest.fixture(scope="module")
def media() -> Iterator[str]:
    handlers = (clip, elsewhere, endless, dribbling, silent)
    routes = [Route("/clip.wav", clip), *(Route(f"/{handler.__name__}", handler) for handler in handlers)]
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


@pytest.mark.parametrize("path", ["/dribbling", "/silent"])
def test_a_host_that_takes_too_long_does_not_hold_the_request(
    path: str, media: str, api: Api, engine: FakeSpeechEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_clips, "FETCH_TIMEOUT_S", 0.5)
    client = api(allowed_media_domains="127.0.0.1")
    began = time.monotonic()
    told = error(client.post("/v1/audio/speech", json={"input": "Hi", "ref_audio": f"{media}{path}"}), 400)
    assert time.monotonic() - began < 3
    assert told["param"] == "ref_audio"
    assert "URL" in told["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1@elsewhere.example/x", "http://[::1", "http://xn--/x", "http://127.0.0.1:9/x"],
)
def test_tricks_with_urls_lead_nowhere(url: str, api: Api) -> None:
    client = api(allowed_media_domains="127.0.0.1")
    assert error(client.post("/v1/audio/speech", json={"input": "Hi", "ref_audio": url}), 400)["param"] == (
        "ref_audio"
    )
