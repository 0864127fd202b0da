"""The HTTP API on the real engine, by the clients that people have: openai's and curl."""

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from openai import APIStatusError, BadRequestError, OpenAI, RateLimitError

from backend.engine import OmniSpeechEngine
from backend.speaking import LEFTOVERS_AFTER_S
from tests.engine.in_process.speaking import CONCURRENCY_LIMIT, QUEUE_SIZE, VOICES
from tests.engine.processes import held_mib, shared_memory
from tests.serving.conftest import api_app, listening
from tests.serving.test_formats import CODECS, PADDING_S, decoded

RATE_HZ = 24_000
SENTENCE = "The engine speaks this sentence, and stops at its end."
FRAMES = 19  # of the requests below: one less than their limit
SHORT: dict[str, Any] = {"seed": 7, "max_new_tokens": FRAMES + 1}
LONG_TEXT = "A long text that goes on for a while. " * 20
STOP_LIMIT_S = 0.5


@pytest.fixture(scope="module")
def url(engine: OmniSpeechEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening(api_app(engine, tmp_path_factory.mktemp("voices"))) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def create(client: OpenAI, audio_format: str, **extra: Any) -> bytes:
    return client.audio.speech.create(
        model=client.models.list().data[0].id,
        voice=VOICES[0].name,
        input=SENTENCE,
        response_format=audio_format,  # type: ignore[arg-type]
        extra_body={**SHORT, **extra},
    ).read()


@pytest.fixture(scope="module")
def whole(client: OpenAI) -> NDArray[np.int16]:
    return np.frombuffer(create(client, "pcm"), "<i2")


def similarity(heard: NDArray[Any], whole: NDArray[np.int16]) -> float:
    """Correlation of two waveforms at 24 kHz where they fit best: 1 if only delay and volume differ."""
    size = len(heard) + len(whole)
    product = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(whole.astype(float), size)), size)
    return float(product.max() / (np.linalg.norm(heard) * np.linalg.norm(whole.astype(float))))


@pytest.mark.parametrize("audio_format", sorted(CODECS))
def test_openais_client_gets_every_format(
    audio_format: str, client: OpenAI, whole: NDArray[np.int16]
) -> None:
    samples, rate_hz, codec = decoded(create(client, audio_format))
    assert codec == CODECS[audio_format]
    assert len(whole) == FRAMES * 1920
    padding_s = len(samples) / rate_hz - len(whole) / RATE_HZ
    assert 0 <= padding_s <= PADDING_S[audio_format] + 0.001
    assert rate_hz in (RATE_HZ, 2 * RATE_HZ)
    lossless = audio_format in ("wav", "flac")
    # Of noise, which an untrained checkpoint speaks, Opus keeps less than of speech.
    assert similarity(samples[:: rate_hz // RATE_HZ], whole) > (0.9999 if lossless else 0.8)


@pytest.mark.parametrize("audio_format", ["pcm", "wav"])
def test_openais_client_streams_from_the_first_chunk_on(
    audio_format: str, client: OpenAI, engine: OmniSpeechEngine, whole: NDArray[np.int16]
) -> None:
    header_bytes = 44 if audio_format == "wav" else 0
    assert engine.capabilities is not None
    first_bytes = 2 * 1920 * engine.capabilities.chunk_schedule_frames[0]
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice=VOICES[0].name, input=SENTENCE, response_format=audio_format,
        stream_format="audio", extra_body=SHORT,
    ) as answer:  # fmt: skip
        pieces = answer.iter_bytes()
        data = next(pieces)
        # The rest is still being made.
        assert engine.requests_in_stages() == 1
        assert len(data) <= header_bytes + first_bytes
        data += b"".join(pieces)
    streamed = np.frombuffer(data[header_bytes:], "<i2").astype(int)
    assert len(streamed) == len(whole)
    # Chunks are decoded with the frames before them as context, a whole clip with all of them.
    assert np.abs(streamed - whole).max() <= 0.01 * np.abs(whole).max()


def test_curl_streams_and_saves(url: str, tmp_path: Path, whole: NDArray[np.int16]) -> None:
    body = {"input": SENTENCE, "voice": VOICES[0].name, "response_format": "wav", **SHORT}
    post = ["curl", "-sS", "--fail", f"{url}/v1/audio/speech", "-H", "Content-Type: application/json"]
    saved, streamed = tmp_path / "saved.wav", tmp_path / "streamed.wav"
    subprocess.run([*post, "-d", json.dumps(body), "-o", saved], check=True, timeout=60)
    subprocess.run(
        [*post, "-N", "-d", json.dumps(body | {"stream": True}), "-o", streamed], check=True, timeout=60
    )
    samples, rate_hz, _ = decoded(saved.read_bytes())
    assert rate_hz == RATE_HZ
    np.testing.assert_array_equal(np.rint(samples * 32768).astype(int), whole)
    assert len(decoded(streamed.read_bytes())[0]) == len(whole)


def test_curl_saves_a_voice_and_speaks_with_it(url: str, tmp_path: Path) -> None:
    voices = f"{url}/v1/audio/voices"
    form = [
        "-F",
        "name=mine",
        "-F",
        "consent=A preset of this app.",
        "-F",
        "ref_text=" + VOICES[1].transcript,
    ]
    clip = ["-F", f"audio_sample=@{VOICES[1].audio_path}"]
    subprocess.run(["curl", "-sS", "--fail", voices, *form, *clip, "-o", tmp_path / "told"], check=True)
    spoken = [
        httpx.post(f"{url}/v1/audio/speech", json={"input": SENTENCE, **SHORT, **asked}, timeout=60).content
        for asked in (
            {"voice": "mine"},
            {"voice": VOICES[1].name},
            {"voice": "mine", "x_vector_only_mode": False},
        )
    ]
    assert httpx.delete(f"{voices}/mine").status_code == 200
    # Saving again rounds the preset's samples to 16 bits, which they were.
    assert spoken[0] == spoken[1]
    assert spoken[2] != spoken[0]


def test_errors_reach_openais_client_as_its_own(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.audio.speech.create(model="tts-1", voice="nobody", input="Hi.")
    assert (refused.value.param, refused.value.code) == ("voice", "invalid_value")
    with pytest.raises(BadRequestError) as refused:
        create(client, "wav", instructions="Cheerfully.")
    assert refused.value.param == "instructions"
    with pytest.raises(APIStatusError) as missing:
        client.audio.speech.create(model="whisper-1", voice="emma", input="Hi.")
    assert (missing.value.status_code, missing.value.code) == (404, "model_not_found")


def test_a_client_that_leaves_frees_both_stages(client: OpenAI, engine: OmniSpeechEngine) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="emma", input=LONG_TEXT, response_format="pcm", extra_body={"stream": True}
    ) as answer:
        next(answer.iter_bytes())
        assert engine.requests_in_stages() == 1
    began = time.monotonic()
    while engine.requests_in_stages() or engine.status.running:
        assert time.monotonic() - began < STOP_LIMIT_S
        time.sleep(0.01)


def test_beyond_the_queue_openais_client_is_told_to_wait(client: OpenAI, engine: OmniSpeechEngine) -> None:
    places = CONCURRENCY_LIMIT + QUEUE_SIZE

    def ask(number: int) -> str | None:
        """None if it was served, else the Retry-After header."""
        try:
            create(client, "pcm", seed=number)
        except RateLimitError as full:
            return full.response.headers["retry-after"]
        return None

    with ThreadPoolExecutor(places + 3) as pool:
        refusals = [told for told in pool.map(ask, range(places + 3)) if told is not None]
    assert 0 < len(refusals) <= 3
    assert all(int(told) > 0 for told in refusals)


def test_streams_beside_each_other_are_each_their_own(url: str) -> None:
    """Any checkpoint passes only if no stream has a sample of another's text or voice."""
    asked = [
        {
            "input": f"This is stream {number}.",
            "voice": VOICES[number].name,
            "seed": 30 + number,
            "max_new_tokens": 25,
            "response_format": "pcm",
            "stream": True,
        }
        for number in range(CONCURRENCY_LIMIT)
    ]

    def speak(body: dict[str, Any]) -> bytes:
        return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60).content

    alone = [speak(body) for body in asked]
    with ThreadPoolExecutor(CONCURRENCY_LIMIT) as pool:
        together = list(pool.map(speak, asked))
    assert len(set(alone)) == CONCURRENCY_LIMIT
    assert together == alone


async def test_after_many_requests_of_which_a_third_left_all_is_as_before(
    url: str, engine: OmniSpeechEngine
) -> None:
    chance = random.Random(0)
    leave_after_s = {number: chance.uniform(0.0, 0.6) for number in range(0, 30, 3)}
    places = asyncio.Semaphore(CONCURRENCY_LIMIT + QUEUE_SIZE)

    async def ask(client: httpx.AsyncClient, number: int) -> bytes | None:
        body = {
            "input": f"This is request {number % 4}.",
            "voice": VOICES[number % 4].name,
            "seed": number % 4,
            "max_new_tokens": 15,
            "response_format": "pcm",
            "stream": bool(number % 2),
        }
        async with places:
            try:
                async with asyncio.timeout(leave_after_s.get(number)):
                    # Who has left may still hold a place for a moment.
                    while (  # noqa: ASYNC110
                        answer := await client.post("/v1/audio/speech", json=body)
                    ).status_code == 429:
                        await asyncio.sleep(0.1)
            except TimeoutError:
                return None
        assert answer.status_code == 200, answer.text
        return answer.content

    shared_before, before_mib = shared_memory(), held_mib(os.getpid())
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        heard = await asyncio.gather(*(ask(client, number) for number in range(30)))
        assert sum(data is None for data in heard) > 3
        # Requests that are alike, and streamed alike, sound alike whoever left beside them.
        for kind in range(12):
            assert len({data for data in heard[kind::12] if data is not None}) <= 1
        async with asyncio.timeout(STOP_LIMIT_S):
            while engine.requests_in_stages() or engine.status.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await asyncio.sleep(LEFTOVERS_AFTER_S + 0.5)
    assert not shared_memory() - shared_before
    assert held_mib(os.getpid()) - before_mib < 100
