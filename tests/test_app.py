"""What app.py answers before any engine is up."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import app as app_module
from backend.settings import Settings
from tests.fakes import FakeSpeechEngine

ROOT = Path(__file__).resolve().parent.parent
GIVE_UP_TIMEOUT_S = 5


def app(*arguments: str, cwd: Path = ROOT) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    result = subprocess.run(
        [sys.executable, ROOT / "app.py", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    return result, time.monotonic() - began


def test_help_names_every_flag_and_its_variable(tmp_path: Path) -> None:
    result, _ = app("--help", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    for flag in (
        *("model", "stage-config", "device", "host", "port", "share", "auth", "root-path"),
        *("api-key", "saved-voices", "allowed-media-domains"),
        *("concurrency-limit", "queue-size", "log-level"),
    ):
        assert f"--{flag}" in result.stdout
        assert f"TTS_{flag.upper().replace('-', '_')}" in result.stdout


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("/no/such/folder", "There is no folder /no/such/folder"),
        ("{here}", "is not a checkpoint: config.json cannot be read"),
    ],
)
def test_a_wrong_model_ends_at_once_with_one_sentence(model: str, said: str, tmp_path: Path) -> None:
    result, seconds = app("--model", model.format(here=tmp_path))
    assert result.returncode == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert seconds < GIVE_UP_TIMEOUT_S


def test_a_bad_flag_ends_at_once_with_one_sentence() -> None:
    result, seconds = app("--prot", "7860")
    assert result.returncode == 2
    assert "did you mean --port?" in result.stderr
    assert seconds < GIVE_UP_TIMEOUT_S


@pytest.mark.parametrize("given", [None, "intranet.example"])
def test_the_page_is_served_also_where_a_proxy_is_set(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    if given is not None:
        monkeypatch.setenv("NO_PROXY", given)
    page = app_module._launch(Settings(saved_voices=tmp_path, _cli_parse_args=False), FakeSpeechEngine())
    assert page is not None
    page.close(verbose=False)
    assert os.environ["no_proxy"].startswith(given or "127.0.0.1")
