"""The app starts, tells its health, and ends cleanly however it is told to."""

import signal
import socket
import time

import pytest
from gradio_client import Client

from tests.engine.app.conftest import StartApp
from tests.engine.app.running import App, free_port

SHUTDOWN_LIMIT_S = 10


def assert_ends_cleanly(app: App, number: signal.Signals) -> None:
    code, seconds = app.stop(number)
    assert (code, seconds < SHUTDOWN_LIMIT_S) == (0, True), f"{code} after {seconds:.1f} s\n{app.log[-3000:]}"
    app.assert_nothing_left()
    assert "Traceback" not in app.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_the_middle_of_a_run(start_app: StartApp, number: signal.Signals) -> None:
    app = start_app()
    told = app.wait_for("ready")
    assert told[0][0] == 503
    assert told[0][1]["phase"] == "loading"
    assert {status for status, content in told if content["phase"] != "ready"} == {503}
    assert told[-1] == (200, {"phase": "ready", "detail": "ready", "running": 0, "queued": 0})
    assert len(app.stage_processes()) == 2

    job = Client(app.url, verbose=False).submit("This goes on for a while. " * 60, api_name="/speak")
    began = time.monotonic()
    while (answer := app.health()) is None or answer[1]["running"] == 0:
        assert time.monotonic() - began < 10
        time.sleep(0.02)
    assert answer[0] == 200
    time.sleep(0.5)
    assert not job.done()
    assert_ends_cleanly(app, number)


@pytest.mark.parametrize(
    "detail", ["", "starting talker and decoder"], ids=["at once", "while its stages start"]
)
def test_a_signal_ends_it_while_it_is_loading(start_app: StartApp, detail: str) -> None:
    app = start_app()
    began = time.monotonic()
    while (answer := app.health()) is None or not answer[1]["detail"].startswith(detail):
        assert time.monotonic() - began < 120
        time.sleep(0.05)
    if detail:
        time.sleep(2)
    assert answer[1]["phase"] == "loading"
    assert_ends_cleanly(app, signal.SIGTERM)


def test_a_port_that_is_taken_ends_it_with_one_sentence(start_app: StartApp) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen()
        app = start_app(port=other.getsockname()[1])
        assert app.process.wait(30) == 1
    assert app.error_lines[-1].startswith("The page cannot be served: ")
    assert str(app.port) in app.error_lines[-1]
    assert "Traceback" not in app.log
    app.assert_nothing_left()
