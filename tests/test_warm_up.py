"""An engine that cannot speak its first sentence has not started."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from backend.admission import Admission
from backend.contract import EngineUnavailable, SpeechRequest, Task
from backend.engine import OmniSpeechEngine
from backend.settings import Settings


async def test_a_warm_up_without_audio_fails_the_start() -> None:
    engine = OmniSpeechEngine(Settings(_cli_parse_args=False))

    async def serves_nothing(run: Any, ticket: Any) -> None:
        run.report = SimpleNamespace(frames=0)

    engine._speaking = SimpleNamespace(admission=Admission(1, 0), serve=serves_nothing)  # type: ignore[assignment]
    with pytest.raises(EngineUnavailable, match="first sentence"):
        await asyncio.wait_for(engine._speak_unheard(SpeechRequest("Hello", Task.VOICE_CLONE)), 5)
