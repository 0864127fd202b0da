"""What people are told when the engine fails for a reason that nobody foresaw."""

import pytest

from backend.contract import Phase
from backend.engine import OmniSpeechEngine, _reason
from backend.settings import Settings

SECRET = "/home/ann/models/secret: token hf_abc"


def test_an_unexpected_failure_is_told_without_its_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = OmniSpeechEngine(Settings(_cli_parse_args=False))

    async def fail() -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(engine, "_main", fail)
    engine._thread_main()
    assert engine.status.phase is Phase.FAILED
    assert engine.status.detail == "The engine met an unexpected RuntimeError; the log has the details."
    assert SECRET in caplog.text


def test_a_failed_health_check_names_the_stage_or_points_at_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert _reason(RuntimeError(f"Stage-0 is gone {SECRET}")) == "the talker's process has died"
    assert _reason(RuntimeError(SECRET)) == "its health check failed; the log says why"
    assert SECRET in caplog.text
