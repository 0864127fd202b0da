"""The scripts that people run against a server or without one, on the fake engine."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from scripts import end2end
from tests.fakes import FakeSpeechEngine
from tests.serving.conftest import VOICES, api_app, listening

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "scripts" / "speech_client.py"


@pytest.fixture
def engine() -> FakeSpeechEngine:
    return FakeSpeechEngine(ttfa_s=0.0, rtf=0.01)


@pytest.fixture
def url(engine: FakeSpeechEngine, tmp_path: Path) -> Iterator[str]:
    with listening(api_app(engine, tmp_path / "saved", api_key="the-key-of-this-test")) as url:
        yield url


def client(url: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "TTS_URL": url, "TTS_API_KEY": "the-key-of-this-test"}
    environment |= options.pop("env", {})
    return subprocess.run(
        # -S and -I: nothing but Python itself may be needed.
        [sys.executable, "-S", "-I", CLIENT, *map(str, arguments)],
        capture_output=True, env=environment, timeout=60, **options,
    )  # fmt: skip


def test_a_streamed_wav_is_saved_with_its_length(url: str, engine: FakeSpeechEngine, tmp_path: Path) -> None:
    told = client(url, "Hello.", "--voice", "michael", "--seed", 4, "--out", tmp_path / "a.wav")
    assert told.returncode == 0, told.stderr
    samples, rate_hz = soundfile.read(tmp_path / "a.wav", dtype="int16")
    assert rate_hz == 24_000
    np.testing.assert_array_equal(samples, engine.runs[0].pcm)
    assert engine.requests[0].stream
    assert (tmp_path / "a.wav").read_bytes()[4:8] != b"\xff\xff\xff\xff"
    for figure in (b"TTFA ", b"RTF ", b"3.20 s of audio", b"seed 4"):
        assert figure in told.stderr


def test_samples_go_to_a_pipe_and_text_comes_from_one(url: str, engine: FakeSpeechEngine) -> None:
    told = client(url, "--out", "-", input=b"From a pipe.")
    assert told.stdout == engine.runs[0].pcm.astype("<i2").tobytes()
    assert engine.requests[0].text == "From a pipe."


def test_the_name_of_the_file_chooses_the_format(url: str, tmp_path: Path) -> None:
    for name, magic in (("a.flac", b"fLaC"), ("a.mp3", b"\xff"), ("a.opus", b"OggS"), ("a.aac", b"\xff\xf1")):
        assert client(url, "Hello.", "--out", tmp_path / name).returncode == 0
        assert (tmp_path / name).read_bytes().startswith(magic) or (tmp_path / name).read_bytes()[
            :3
        ] == b"ID3"


def test_a_clip_is_sent_along(url: str, engine: FakeSpeechEngine, tmp_path: Path) -> None:
    clip = ("--ref-audio", VOICES[0].audio_path, "--ref-text", VOICES[0].transcript)
    assert client(url, "Hello.", *clip, "--out", tmp_path / "a.wav").returncode == 0
    request = engine.requests[0]
    assert (request.transcript, request.x_vector_only) == (VOICES[0].transcript, False)


def test_it_plays_through_a_player(url: str, engine: FakeSpeechEngine, tmp_path: Path) -> None:
    player = tmp_path / "aplay"
    player.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nexec /bin/cat > {tmp_path}/heard\n')
    player.chmod(player.stat().st_mode | stat.S_IXUSR)
    told = client(url, "Hello.", "--play", env={"PATH": str(tmp_path)})
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "heard").read_bytes() == engine.runs[0].pcm.astype("<i2").tobytes()
    assert "-r 24000" in (tmp_path / "arguments").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--voice", "nobody", "--out", "-"], b"no voice named 'nobody'"),
        (["--api-key", "wrong", "--out", "-"], b"API key"),
        (["--url", "http://127.0.0.1:9", "--out", "-"], b"refused"),
        (["--ref-audio", "/no/such/file", "--out", "-"], b"/no/such/file"),
    ],
)
def test_what_goes_wrong_is_one_sentence(url: str, arguments: list[str], said: bytes) -> None:
    told = client(url, "Hello.", *arguments)
    assert (told.returncode, told.stdout) == (1, b"")
    assert said in told.stderr
    assert told.stderr.count(b"\n") == 1


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, engine: FakeSpeechEngine) -> Any:
    """end2end.py with the fake engine and these arguments; gives its exit code."""

    def run(*arguments: Any) -> int:
        monkeypatch.setattr(end2end, "OmniSpeechEngine", lambda settings: engine)
        monkeypatch.setattr(sys, "argv", ["end2end.py", *map(str, arguments)])
        return end2end.main()

    return run


def test_a_file_of_sentences_becomes_wavs_and_a_report(
    offline: Any, engine: FakeSpeechEngine, tmp_path: Path
) -> None:
    engine.max_waiting = 10
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("One.\n\n# not this\nTwo.\n  Three.  \n")
    assert offline(sentences, "--out", tmp_path / "out", "--at-once", 2, "--seed", 9, "--voice", "clara") == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["text"] for row in report["texts"]] == ["One.", "Two.", "Three."]
    assert (report["spoken"], report["failed"]) == (3, 0)
    for row in report["texts"]:
        samples, _ = soundfile.read(tmp_path / "out" / row["file"], dtype="int16")
        assert len(samples) == row["frames"] * 1920
    assert {request.seed for request in engine.requests} == {9}
    assert all(request.x_vector_only and request.reference for request in engine.requests)


def test_a_failed_sentence_is_in_the_report_and_in_the_exit_code(
    offline: Any, engine: FakeSpeechEngine, tmp_path: Path
) -> None:
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("One.\n" + "x" * 700 + "\n")
    assert offline(sentences, "--out", tmp_path / "out") == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["spoken"], report["failed"]) == (1, 1)
    assert "limit" in report["texts"][1]["error"]


def test_without_sentences_or_with_an_unknown_voice_nothing_is_spoken(
    offline: Any, engine: FakeSpeechEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, one = tmp_path / "empty.txt", tmp_path / "one.txt"
    empty.write_text("# nothing\n")
    one.write_text("One.\n")
    assert offline(empty, "--out", tmp_path / "out") == 1
    assert offline(one, "--out", tmp_path / "out", "--voice", "nobody") == 1
    assert "There is no voice 'nobody'" in capsys.readouterr().err
    assert engine.requests == []


@pytest.fixture
def python_with_a_fake_app(tmp_path: Path) -> Path:
    """A Python whose app.py answers at the address and port that the app's settings say, after a second."""
    app = tmp_path / "app.py"
    app.write_text(
        "import http.server, signal, sys, time\n"
        "from backend.settings import load_settings\n"
        "settings = load_settings()\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "time.sleep(1)\n"
        "class Healthy(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200 if self.path == '/health' else 404)\n"
        "        self.end_headers()\n"
        "http.server.HTTPServer((settings.host, settings.port), Healthy).serve_forever()\n"
    )
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'test "$1" = app.py && shift && PYTHONPATH={ROOT} exec {sys.executable} {app} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return python


@pytest.mark.parametrize("by_flag", [True, False])
def test_the_server_is_told_to_be_ready_wherever_it_listens(
    by_flag: bool, python_with_a_fake_app: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHON": str(python_with_a_fake_app), "TTS_HOST": "127.0.0.2"}
    environment |= {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    flags = ["--port", port]
    if by_flag:
        environment["TTS_HOST"] = "127.0.0.3"
        flags += ["--host", "127.0.0.2"]
    server = subprocess.Popen(
        [ROOT / "scripts" / "run_server.sh", *flags], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == (
            f"Ready: page http://127.0.0.2:{port}, API http://127.0.0.2:{port}/v1\n"
        )
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(10)
    assert code == 7  # the app's own


def test_the_server_s_script_ends_with_the_app_that_cannot_start() -> None:
    told = subprocess.run(
        [ROOT / "scripts" / "run_server.sh", "--prot", "8000"],
        env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == "--prot is not a known flag; did you mean --port? See python app.py --help.\n"
