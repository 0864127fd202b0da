"""A second model of vLLM-Omni, from a random checkpoint to audio, by the same engine and API."""

import io
import wave
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from backend.contract import FinishReason, ReferenceClip, SpeechRequest, Task
from backend.engine import OmniSpeechEngine
from backend.reference_audio import load_reference_clip
from backend.settings import Settings
from backend.voices import load_preset_voices
from tests.engine.in_process.speaking import speak
from tests.engine.starting import running_engine
from tests.serving.conftest import api_app

RATE_HZ, SAMPLES_PER_FRAME = 44_100, 2048
# One token more than frames: the last one's other codes are never predicted.
PLAIN = SpeechRequest("Good morning.", Task.TEXT_ONLY, seed=7, max_frames=8)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniSpeechEngine]:
    from backend.families.audio8_checkpoint import make_checkpoint

    folder = tmp_path_factory.mktemp("audio8")
    make_checkpoint(folder)
    with running_engine(Settings(model=str(folder), _cli_parse_args=False)) as engine:
        yield engine


@pytest.fixture(scope="module")
def clip() -> ReferenceClip:
    whole = load_reference_clip(load_preset_voices()[0].audio_path)
    return ReferenceClip(whole.samples[: whole.sample_rate_hz], whole.sample_rate_hz)


def test_it_tells_what_it_can_do(engine: OmniSpeechEngine) -> None:
    able = engine.capabilities
    assert able is not None
    assert able.tasks == (Task.TEXT_ONLY, Task.VOICE_CLONE)
    assert (able.sample_rate_hz, able.samples_per_frame) == (RATE_HZ, SAMPLES_PER_FRAME)
    assert not able.supports_x_vector
    assert "random and untrained" in able.notice


async def test_text_is_streamed_at_the_model_s_own_rate(engine: OmniSpeechEngine) -> None:
    speech = await speak(engine, PLAIN)
    assert [len(chunk.pcm) / SAMPLES_PER_FRAME for chunk in speech.chunks] == [4, 3]
    assert {chunk.sample_rate_hz for chunk in speech.chunks} == {RATE_HZ}
    report = speech.report
    assert (report.frames, report.finish_reason) == (7, FinishReason.LENGTH)
    assert report.audio_s == pytest.approx(7 * SAMPLES_PER_FRAME / RATE_HZ)
    assert (report.mode, report.frame_stats) == ("", None)
    assert np.std(speech.pcm) > 100


async def test_speech_ends_by_itself(engine: OmniSpeechEngine) -> None:
    report = (await speak(engine, replace(PLAIN, seed=1, max_frames=100))).report
    assert report.finish_reason is FinishReason.STOP
    assert 0 < report.frames < 99


async def test_the_seed_decides_what_is_heard_and_streaming_does_not(engine: OmniSpeechEngine) -> None:
    short = replace(PLAIN, max_frames=5)
    streamed, whole = await speak(engine, short), await speak(engine, replace(short, stream=False))
    np.testing.assert_array_equal(streamed.pcm, whole.pcm)
    other = await speak(engine, replace(short, seed=8))
    assert not np.array_equal(streamed.pcm, other.pcm)


async def test_a_voice_is_cloned_from_a_clip_and_its_transcript(
    engine: OmniSpeechEngine, clip: ReferenceClip
) -> None:
    cloned = replace(PLAIN, task=Task.VOICE_CLONE, reference=clip, transcript="Hello.", max_frames=5)
    speech = await speak(engine, cloned)
    assert speech.report.frames == 4
    assert not np.array_equal(speech.pcm, (await speak(engine, replace(PLAIN, max_frames=5))).pcm)


def test_the_api_answers_with_a_file_of_that_rate(engine: OmniSpeechEngine, tmp_path: Path) -> None:
    client = TestClient(api_app(engine, tmp_path))
    asked = {"input": PLAIN.text, "max_new_tokens": 5, "seed": PLAIN.seed}
    answer = client.post("/v1/audio/speech", json=asked)
    assert answer.status_code == 200
    with wave.open(io.BytesIO(answer.content)) as file:
        assert (file.getframerate(), file.getnframes()) == (RATE_HZ, 4 * SAMPLES_PER_FRAME)
    refused = client.post("/v1/audio/speech", json={"input": "Hello.", "task_type": "CustomVoice"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "task_type"
