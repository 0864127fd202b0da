"""Streaming holds wherever the page is served: login, root path, iframe, plain http."""

import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import numpy as np
import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, expect
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.browser.conftest import new_context
from tests.browser.visitor import Visitor
from tests.fakes import NAMED_SPEAKERS, FakeSpeechEngine, served

Visit = Callable[[str], Visitor]


@pytest.fixture
def engine() -> FakeSpeechEngine:
    return FakeSpeechEngine(NAMED_SPEAKERS, frames=20)


@contextmanager
def serve(app: Starlette) -> Iterator[int]:
    """`app` on a free port, from a thread."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield port
    server.should_exit = server.force_exit = True
    thread.join(5)


def reverse_proxy(target: str, prefix: str) -> Starlette:
    """Forwards everything under `prefix` to `target` without the prefix, streaming both ways."""
    client = httpx.AsyncClient(base_url=target, timeout=None)

    async def forward(request: Request) -> Response:
        path = request.url.path.removeprefix(prefix) or "/"
        headers = [(k, v) for k, v in request.headers.items() if k != "host"]
        upstream = await client.send(
            client.build_request(
                request.method,
                f"{path}?{request.url.query}",
                headers=[*headers, ("x-forwarded-host", request.url.netloc), ("x-forwarded-proto", "http")],
                content=await request.body(),
            ),
            stream=True,
        )
        kept = {k: v for k, v in upstream.headers.items() if k not in ("content-length", "transfer-encoding")}

        async def body() -> AsyncIterator[bytes]:
            async for piece in upstream.aiter_raw():
                yield piece

        return StreamingResponse(
            body(), upstream.status_code, headers=kept, background=BackgroundTask(upstream.aclose)
        )

    return Starlette(routes=[Route(prefix + "{path:path}", forward, methods=["GET", "POST", "HEAD"])])


def test_behind_a_login(engine: FakeSpeechEngine, context: BrowserContext) -> None:
    with served(engine, auth=("ada", "engine")) as url:
        assert httpx.post(f"{url}gradio_api/call/speak", json={"data": ["hello"]}).status_code == 401
        page = context.new_page()
        page.goto(url)
        page.get_by_label("username").fill("ada")
        page.get_by_label("password").fill("engine")
        page.get_by_role("button", name="Login").click()
        visitor = Visitor(page)
        visitor.wait_until_ready()
        np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)


def test_under_a_root_path_behind_a_reverse_proxy(engine: FakeSpeechEngine, visit: Visit) -> None:
    with served(engine, root_path="/tts") as url, serve(reverse_proxy(url, "/tts")) as port:
        visitor = visit(f"http://127.0.0.1:{port}/tts/")
        heard = visitor.listen()
        np.testing.assert_array_equal(heard, engine.runs[-1].pcm)
        np.testing.assert_array_equal(visitor.downloaded_wav(), heard)


def test_in_a_frame_of_another_site(engine: FakeSpeechEngine, context: BrowserContext) -> None:
    with served(engine) as url:
        host = Starlette(
            routes=[Route("/", lambda _: HTMLResponse(f'<iframe src="{url}" width="1000" height="900">'))]
        )
        with serve(host) as port:
            page = context.new_page()
            # Another site than 127.0.0.1, and a secure one, as a Space is.
            page.goto(f"http://localhost:{port}/")
            frame = page.locator("iframe").element_handle().content_frame()
            assert frame
            visitor = Visitor(page, frame)
            visitor.wait_until_ready()
            np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)


def test_on_plain_http_from_another_machine(engine: FakeSpeechEngine, visit: Visit) -> None:
    with served(engine) as url:
        visitor = visit(url.replace("127.0.0.1", "plain.test"))
        assert (
            visitor.frame.evaluate("[isSecureContext, 'audioWorklet' in AudioContext.prototype]")
            == [False] * 2
        )
        heard = visitor.listen()
        # Without a worklet the recorder is not exact either.
        assert abs(len(heard) - len(engine.runs[-1].pcm)) < 4800
        assert visitor.figure("underruns") == "0"


@pytest.fixture
def visit_without_worklet(browser: Browser) -> Iterator[Visit]:
    """As on plain http from another machine; the recorder keeps its own way to the worklet."""
    context = new_context(browser)
    context.add_init_script(
        "Object.defineProperty(BaseAudioContext.prototype, 'audioWorklet', { get: () => undefined });"
    )

    yield partial(Visitor.arriving, context)
    context.close()


def test_without_audio_worklet(engine: FakeSpeechEngine, visit_without_worklet: Visit) -> None:
    engine.ttfa_s = 0.5  # the recorder needs a moment too
    with served(engine) as url:
        visitor = visit_without_worklet(url)
        for _ in range(2):
            np.testing.assert_array_equal(visitor.listen(), engine.runs[-1].pcm)
            assert visitor.figure("underruns") == "0"


def test_without_audio_worklet_stop_is_as_quick(
    engine: FakeSpeechEngine, visit_without_worklet: Visit
) -> None:
    engine.frames, engine.ttfa_s, engine.rtf = 250, 0.5, 0.1
    with served(engine) as url:
        visitor = visit_without_worklet(url)
        visitor.speak()
        visitor.wait_for_sound()
        visitor.stop_button.click()
        stopped_at = visitor.frame.evaluate("Date.now()")
        expect(visitor.status).to_have_text("Stopped")
        visitor.page.wait_for_timeout(700)
        assert visitor.frame.evaluate("audioTap.lastSoundAt()") - stopped_at < 300


def test_without_audio_worklet_a_slowdown_is_a_gap_and_nothing_is_lost(
    engine: FakeSpeechEngine, visit_without_worklet: Visit
) -> None:
    engine.ttfa_s, engine.rtf, engine.known_rtf = 0.5, 1.3, 0.1
    with served(engine) as url:
        visitor = visit_without_worklet(url)
        heard = visitor.listen()
        np.testing.assert_array_equal(heard[heard != 0], engine.runs[-1].pcm)
        assert int(visitor.figure("underruns").split(" ")[0]) >= 1
