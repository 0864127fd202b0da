"""The API on the fake engine, without the page."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

from backend.contract import SpeechEngine
from backend.serving.routes import api_routes
from backend.settings import Settings
from backend.voices import load_preset_voices
from tests.fakes import FakeSpeechEngine

VOICES = load_preset_voices()

Api = Callable[..., TestClient]


def api_app(engine: SpeechEngine, saved_voices: Path, **settings: Any) -> Starlette:
    values = {"saved_voices": saved_voices, "_cli_parse_args": False, **settings}
    return Starlette(routes=api_routes(engine, VOICES, Settings(**values)))


@contextmanager
def listening(app: Starlette) -> Iterator[str]:
    """The app on a free port of this machine, by a real server in a thread; gives its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def engine() -> FakeSpeechEngine:
    return FakeSpeechEngine(ttfa_s=0.0, rtf=0.01)


@pytest.fixture
def api(engine: FakeSpeechEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Makes a client of the API for `engine`, or another one, with settings."""
    for variable in ("GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"):
        monkeypatch.delenv(variable, raising=False)

    def make(other: FakeSpeechEngine | None = None, **settings: Any) -> TestClient:
        app = api_app(other or engine, tmp_path / "saved", **settings)
        return TestClient(app, raise_server_exceptions=False)

    return make


def error(answer: Any, status: int) -> dict[str, Any]:
    """The error object of an answer of this status, checked to be OpenAI's shape."""
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert list(content) == ["error"]
    assert sorted(content["error"]) == ["code", "message", "param", "type"]
    assert content["error"]["message"]
    found: dict[str, Any] = content["error"]
    return found
