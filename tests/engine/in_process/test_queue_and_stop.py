"""Who waits, who is refused, and how a run ends before its time."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from backend.contract import (
    FinishReason,
    InvalidRequest,
    Phase,
    QueueFull,
    ReferenceClip,
    SpeechRequest,
    SpeechRun,
    Task,
)
from backend.engine import OmniSpeechEngine
from tests.engine.in_process.speaking import CONCURRENCY_LIMIT, QUEUE_SIZE, in_context, request, speak

STOP_LIMIT_S = 0.5


def long_request(**values: Any) -> SpeechRequest:
    return request(text="A long text that goes on for a while. " * 20, **values)


async def close(run: SpeechRun) -> float:
    """Seconds that closing took; checks that the run was let go of by then."""
    began = time.monotonic()
    await run.aclose()
    seconds = time.monotonic() - began
    assert run.report is not None
    assert run.report.finish_reason is FinishReason.ABORTED
    return seconds


async def assert_freed(engine: OmniSpeechEngine) -> None:
    assert (engine.status.running, engine.status.queued, engine.requests_in_stages()) == (0, 0, 0)


async def assert_speaks(engine: OmniSpeechEngine) -> None:
    assert (await speak(engine, request(max_frames=8))).report.frames == 7


@pytest.mark.parametrize(
    "asked", [long_request(), in_context(text="word " * 100)], ids=["x-vector", "in context"]
)
async def test_a_run_stopped_in_its_middle_frees_the_engine_at_once(
    engine: OmniSpeechEngine, asked: SpeechRequest
) -> None:
    run = engine.synthesize(asked)
    await anext(run)
    await anext(run)
    assert engine.status.running == 1
    assert await close(run) < STOP_LIMIT_S
    await assert_freed(engine)
    assert run.report is not None
    assert run.report.chunks >= 2
    with pytest.raises(StopAsyncIteration):
        await anext(run)
    await assert_speaks(engine)


@pytest.mark.parametrize("wait_s", [0.0, 0.02, 0.1], ids=["at once", "20 ms in", "100 ms in"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_run_stopped_before_its_first_chunk_frees_the_engine_at_once(
    engine: OmniSpeechEngine, wait_s: float, stream: bool
) -> None:
    run = engine.synthesize(long_request(stream=stream, first_chunk_frames=25))
    if wait_s:
        await asyncio.sleep(wait_s)
    assert await close(run) < STOP_LIMIT_S
    await assert_freed(engine)
    assert run.report is not None
    assert (run.report.chunks, run.report.ttfa_s) == (0, None)
    await assert_speaks(engine)


async def test_stopping_one_run_leaves_the_others_as_they_would_have_been(engine: OmniSpeechEngine) -> None:
    asked = request(max_frames=40)
    alone = await speak(engine, asked)
    stopped = engine.synthesize(long_request(seed=1))
    beside = asyncio.create_task(speak(engine, asked))
    await anext(stopped)
    assert await close(stopped) < STOP_LIMIT_S
    np.testing.assert_array_equal((await beside).pcm, alone.pcm)


async def test_many_stops_in_a_row_leave_no_request_behind(engine: OmniSpeechEngine) -> None:
    for number in range(12):
        run = engine.synthesize(long_request(seed=number))
        await asyncio.sleep(0.03 * number)
        assert await close(run) < STOP_LIMIT_S
        await assert_freed(engine)
    await assert_speaks(engine)


async def test_a_run_nobody_listens_to_any_more_still_frees_its_place(engine: OmniSpeechEngine) -> None:
    """The caller's loop closes under a run, as a page's would."""

    def call_and_go() -> SpeechRun:
        async def call() -> SpeechRun:
            run = engine.synthesize(request(max_frames=10))
            await anext(aiter(run))
            return run

        return asyncio.run(call())

    run = await asyncio.to_thread(call_and_go)
    async with asyncio.timeout(10):
        while run.report is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert run.report.finish_reason is FinishReason.LENGTH
    await assert_freed(engine)


async def test_requests_beyond_the_places_wait_then_are_refused(engine: OmniSpeechEngine) -> None:
    running = [engine.synthesize(long_request(seed=number)) for number in range(CONCURRENCY_LIMIT)]
    waiting = [engine.synthesize(request(seed=number, max_frames=8)) for number in range(QUEUE_SIZE)]
    assert [run.ahead for run in running] == [0] * CONCURRENCY_LIMIT
    assert [run.ahead for run in waiting] == [1, 2]
    assert (engine.status.running, engine.status.queued) == (CONCURRENCY_LIMIT, QUEUE_SIZE)
    with pytest.raises(QueueFull, match=r"^All 4 places are taken and 2 requests wait; try again in") as full:
        engine.synthesize(request())
    assert full.value.retry_after_s > 0

    assert await close(running[0]) < STOP_LIMIT_S
    assert [run.ahead for run in waiting] == [0, 1]
    # One that waits may leave, and the refused one find a place.
    assert await close(waiting[1]) < STOP_LIMIT_S
    assert waiting[1].report is not None
    assert waiting[1].report.queue_s > 0
    late = engine.synthesize(request(max_frames=8, seed=9))
    assert late.ahead == 1
    served = [chunk async for chunk in waiting[0]]
    assert waiting[0].report is not None
    assert waiting[0].report.frames == 7
    # Time in the queue is not time to the first chunk.
    assert served[0].elapsed_s == waiting[0].report.ttfa_s
    assert len([chunk async for chunk in late]) > 0
    for run in running[1:]:
        await close(run)
    await assert_freed(engine)
    await assert_speaks(engine)


async def test_more_requests_than_places_are_all_served_in_order(engine: OmniSpeechEngine) -> None:
    ended: list[int] = []

    async def serve(number: int) -> None:
        speech = await speak(engine, request(seed=number, max_frames=12))
        assert speech.report.frames == 11
        ended.append(number)

    await asyncio.gather(*(serve(number) for number in range(CONCURRENCY_LIMIT + QUEUE_SIZE)))
    assert sorted(ended[:CONCURRENCY_LIMIT]) == list(range(CONCURRENCY_LIMIT))
    assert sorted(ended) == list(range(CONCURRENCY_LIMIT + QUEUE_SIZE))


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"text": ""}, "text"),
        ({"text": " \n\t"}, "text"),
        ({"text": "👋🎉"}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"text": "x" * 20_000}, "text"),
        ({"language": "Klingon"}, "language"),
        ({"speaker": "vivian"}, "speaker"),
        ({"task": Task.NAMED_SPEAKER, "speaker": "vivian", "reference": None}, "task"),
        ({"task": Task.VOICE_DESIGN, "instruction": "A calm voice.", "reference": None}, "task"),
        ({"instruction": "Cheerfully."}, "instruction"),
        ({"reference": None}, "reference"),
        ({"reference": ReferenceClip(np.zeros(10, np.float32), 24_000)}, "reference"),
        ({"x_vector_only": False, "transcript": ""}, "transcript"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"max_frames": 1}, "max_frames"),
        ({"max_frames": 10**6}, "max_frames"),
        ({"first_chunk_frames": 0}, "first_chunk_frames"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
    ],
)
async def test_a_bad_request_is_refused_at_once_and_takes_no_place(
    engine: OmniSpeechEngine, values: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.synthesize(request(**values))
    assert refusal.value.param == param
    assert engine.status.phase is Phase.READY
    await assert_freed(engine)


async def test_after_bad_requests_the_next_one_is_spoken(engine: OmniSpeechEngine) -> None:
    await assert_speaks(engine)
