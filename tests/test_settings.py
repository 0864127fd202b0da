import subprocess
import sys
from pathlib import Path

import pytest

from backend.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TTS_{name.upper()}", raising=False)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        load_settings(argv)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_defaults_need_no_flags() -> None:
    settings = load_settings([])
    assert settings.model_dump() == {
        "model": None,
        "stage_config": None,
        "device": "auto",
        "host": None,
        "port": None,
        "share": False,
        "auth": None,
        "api_key": None,
        "saved_voices": None,
        "allowed_media_domains": None,
        "root_path": None,
        "concurrency_limit": None,
        "queue_size": 32,
        "log_level": "info",
    }


def test_every_flag_is_taken() -> None:
    flags = (
        "--model some/model --stage-config gpu_throughput --device cpu --host 0.0.0.0 --port 8000 --share "
        "--auth ann:secret --api-key some-long-key --saved-voices /some/folder "
        "--allowed-media-domains Media.example,other.example --root-path /tts/ --concurrency-limit 3 "
        "--queue-size 0 --log-level debug"
    )
    settings = load_settings(flags.split())
    assert settings.model_dump() == {
        "model": "some/model",
        "stage_config": "gpu_throughput",
        "device": "cpu",
        "host": "0.0.0.0",
        "port": 8000,
        "share": True,
        "auth": ["ann:secret"],
        "api_key": "some-long-key",
        "saved_voices": Path("/some/folder"),
        "allowed_media_domains": ["media.example", "other.example"],
        "root_path": "/tts",
        "concurrency_limit": 3,
        "queue_size": 0,
        "log_level": "debug",
    }


def test_every_flag_has_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "MODEL": "some/model",
        "STAGE_CONFIG": "cpu",
        "DEVICE": "cuda",
        "HOST": "::1",
        "PORT": "8000",
        "SHARE": "true",
        "AUTH": "ann:secret",
        "API_KEY": "some-long-key",
        "SAVED_VOICES": "/some/folder",
        "ALLOWED_MEDIA_DOMAINS": "media.example",
        "ROOT_PATH": "/tts",
        "CONCURRENCY_LIMIT": "3",
        "QUEUE_SIZE": "5",
        "LOG_LEVEL": "error",
    }
    assert {name.lower() for name in values} == set(Settings.model_fields)
    for name, value in values.items():
        monkeypatch.setenv(f"TTS_{name}", value)
    found = load_settings([]).model_dump()
    expected: dict[str, object] = {name.lower(): value for name, value in values.items()}
    assert found == expected | {
        "port": 8000,
        "share": True,
        "auth": ["ann:secret"],
        "saved_voices": Path("/some/folder"),
        "allowed_media_domains": ["media.example"],
        "concurrency_limit": 3,
        "queue_size": 5,
    }


def test_a_flag_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTS_PORT", "8000")
    assert load_settings(["--port", "9000"]).port == 9000


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTS_PORT", "")
    assert load_settings([]).port is None


@pytest.mark.parametrize("argv", [["--auth", "ann:1", "--auth", "bob:2:3"], ["--auth", "ann:1, bob:2:3"]])
def test_logins_repeat_or_are_separated_by_commas(argv: list[str]) -> None:
    assert load_settings(argv).logins == [("ann", "1"), ("bob", "2:3")]


def test_a_log_level_may_be_written_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTS_LOG_LEVEL", "WARNING")
    assert load_settings([]).log_level == "warning"


def test_passwords_stay_out_of_the_settings_text() -> None:
    assert "secret" not in repr(load_settings(["--auth", "ann:secret", "--api-key", "a-secret-key"]))


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ("--port 70000", ("--port (or TTS_PORT)", "from 1 to 65535", "'70000'")),
        ("--port abc", ("--port", "whole number", "'abc'")),
        ("--device tpu", ("--device", "auto, cuda or cpu", "'tpu'")),
        ("--log-level loud", ("--log-level", "debug, info, warning or error")),
        ("--queue-size -1", ("--queue-size", "at least 0", "'-1'")),
        ("--concurrency-limit 0", ("--concurrency-limit", "at least 1", "'0'")),
        ("--root-path tts", ("--root-path", "starts with /", "'tts'")),
        ("--stage-config nope", ("--stage-config", "gpu_low_latency", "'nope'")),
        ("--auth ann", ("--auth (or TTS_AUTH)", "user:password")),
        ("--modl x", ("--modl is not a known flag", "did you mean --model?")),
        ("--zzz", ("--zzz is not a known flag", "--stage-config, --device")),
        ("--model", ("--model: expected one argument",)),
    ],
)
def test_a_bad_flag_is_one_sentence(
    argv: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, *argv.split())
    assert all(part in message for part in parts), message


def test_a_bad_variable_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTS_SHARE", "maybe")
    assert "--share (or TTS_SHARE) must be true or false, not 'maybe'." in refusal(capsys)


def test_a_refused_login_does_not_show_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hunter2" not in refusal(capsys, "--auth", ":hunter2")
    assert "hunter2" not in refusal(capsys, "--api-key", "hunter2")


def test_help_names_every_flag_with_its_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_settings(["--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    options = text.partition("options:")[2]
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in options
        assert f"[env: TTS_{name.upper()}]" in options
    assert options.count("(default: ") == len(Settings.model_fields)


def test_settings_load_without_the_heavy_libraries() -> None:
    program = "import sys, backend.settings; print({'torch', 'vllm', 'gradio'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_a_mistyped_flag_is_not_repeated_with_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_settings(["--atuh=ann:secret"])
    assert "secret" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ([], "http://127.0.0.1:7860"),
        (["--host", "0.0.0.0", "--port", "8000"], "http://127.0.0.1:8000"),
        (["--host", "::"], "http://[::1]:7860"),
        (["--host", "tts.example"], "http://tts.example:7860"),
    ],
)
def test_this_machine_reaches_the_app_at_one_address(
    flags: list[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    assert load_settings(flags).url == url


@pytest.mark.parametrize(
    ("flags", "variables", "reached"),
    [
        ([], {}, False),
        (["--host", "localhost"], {}, False),
        (["--host", "0.0.0.0"], {}, True),
        (["--share"], {}, True),
        (["--root-path", "/tts"], {}, True),
        ([], {"GRADIO_SERVER_NAME": "0.0.0.0"}, True),
        ([], {"GRADIO_ROOT_PATH": "/tts"}, True),
    ],
)
def test_others_reach_the_app_by_flag_or_by_gradio_s_own_variable(
    flags: list[str], variables: dict[str, str], reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load_settings(flags).open_to_others is reached
