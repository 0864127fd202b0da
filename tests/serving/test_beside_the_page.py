"""The API on the page's own server, as app.py puts it there."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gradio_client import Client

from backend.serving.routes import api_routes
from backend.settings import Settings
from tests.fakes import FakeSpeechEngine, served
from tests.serving.conftest import VOICES

ENGINE = FakeSpeechEngine(ttfa_s=0.0, rtf=0.01)


@pytest.fixture(scope="module", params=[None, "/tts"], ids=["at the root", "below a path"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = Settings(saved_voices=Path(tmp_path_factory.mktemp("voices")), _cli_parse_args=False)
    routes = api_routes(ENGINE, VOICES, settings)
    with served(ENGINE, VOICES, app_kwargs={"routes": routes}, root_path=request.param) as url:
        yield url.removesuffix("/")


def test_both_speak(url: str) -> None:
    answer = httpx.post(f"{url}/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"})
    assert answer.content == ENGINE.runs[-1].pcm.astype("<i2").tobytes()
    _, _, figures = Client(url, verbose=False).predict("Hello.", api_name="/speak")
    assert figures["state"] == "finished"


def test_a_stream_is_not_gathered_on_its_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINE, "rtf", 1.0)
    body = {"input": "Hello.", "response_format": "pcm", "stream": True}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body) as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        pieces = answer.iter_raw()
        next(pieces)
        # The rest, some seconds of work, is still being made.
        assert ENGINE.runs[-1].report is None


def test_the_page_and_the_health_stay_where_they_were(url: str) -> None:
    page = httpx.get(url, follow_redirects=True)
    assert (page.status_code, page.headers["content-type"].split(";")[0]) == (200, "text/html")
    assert httpx.get(f"{url}/health").json()["phase"] == "ready"
    assert httpx.get(f"{url}/metrics").status_code == 200


def test_the_api_describes_itself(url: str) -> None:
    described = httpx.get(f"{url}/v1/openapi.json").json()
    assert set(described["paths"]) == {
        "/models",
        "/models/{model}",
        "/audio/speech",
        "/audio/voices",
        "/audio/voices/{name}",
    }


def test_another_sites_page_may_not_use_it(url: str) -> None:
    answer = httpx.get(f"{url}/v1/models", headers={"origin": "http://elsewhere.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
