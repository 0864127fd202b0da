"""What the engine learns from its first sentences, and that it has not started if it cannot speak them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from backend.admission import Admission
from backend.contract import EngineUnavailable, FrameStats, SpeechRequest, Task
from backend.engine import OmniSpeechEngine
from backend.settings import Settings

HELLO = SpeechRequest("Hello", Task.VOICE_CLONE)


async def test_a_warm_up_without_audio_fails_the_start() -> None:
    engine = OmniSpeechEngine(Settings(_cli_parse_args=False))

    async def serves_nothing(run: Any, ticket: Any) -> None:
        run.report = SimpleNamespace(frames=0)

    engine._speaking = SimpleNamespace(admission=Admission(1, 0), serve=serves_nothing)  # type: ignore[assignment]
    with pytest.raises(EngineUnavailable, match="first sentence"):
        await asyncio.wait_for(engine._speak_unheard(HELLO, alone=True), 5)


@pytest.mark.parametrize(("alone", "unavailable"), [(True, "recording failed"), (False, "")])
async def test_only_a_run_alone_tells_that_there_is_no_graph(alone: bool, unavailable: str) -> None:
    """Runs together may be more than the largest graph holds, which is no reason against it for fewer."""
    engine = OmniSpeechEngine(Settings(_cli_parse_args=False))

    async def serves_eager(run: Any, ticket: Any) -> None:
        run.report = SimpleNamespace(
            frames=20, frame_stats=FrameStats(20, 0, 1.0, 1.0, 20, "recording failed")
        )

    speaking = SimpleNamespace(admission=Admission(1, 0), serve=serves_eager, graph_unavailable="")
    engine._speaking = speaking  # type: ignore[assignment]
    await asyncio.wait_for(engine._speak_unheard(HELLO, alone), 5)
    assert speaking.graph_unavailable == unavailable
