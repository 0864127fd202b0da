"""EngineRun between two loops: the caller's is the test's own, the engine's runs in a thread."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

from backend.contract import AudioChunk, EngineUnavailable, FinishReason, RunReport, SpeechRequest, Task
from backend.run import EngineRun, died

REQUEST = SpeechRequest("Hello.", Task.VOICE_CLONE)


def chunk(index: int) -> AudioChunk:
    return AudioChunk(np.full(1920, index, np.int16), 24_000, index, 0.1 * index)


class Engine:
    """As much of an engine as a run needs: a loop in a thread, and something that serves on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.freed = 0

    def run(self, ahead: Callable[[], int] = lambda: 0) -> EngineRun:
        return EngineRun(REQUEST, 7, self.loop, ahead)

    def serve(self, run: EngineRun, speak: Callable[[], Awaitable[None]]) -> None:
        self.submit(self._serve(run, speak))

    async def _serve(self, run: EngineRun, speak: Callable[[], Awaitable[None]]) -> None:
        reason = FinishReason.STOP
        try:
            run.serve_in_this_task()
            await speak()
        except asyncio.CancelledError:
            reason = FinishReason.ABORTED
            raise
        finally:
            self.freed += 1
            run.report = RunReport(run.request_id, run.seed, "eager", reason, 0, 0, 0.0, 0.0, None, 0.0)
            run.push(None)

    def submit(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def tasks(self) -> int:
        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(1)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(2)
            self.loop.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.close()


async def forever() -> None:
    await asyncio.sleep(3600)


async def test_chunks_arrive_in_order_then_it_ends_and_stays_ended(engine: Engine) -> None:
    run = engine.run()

    async def speak() -> None:
        for index in range(50):
            run.push(chunk(index))
            await asyncio.sleep(0)

    engine.serve(run, speak)
    assert [chunk.index async for chunk in run] == list(range(50))
    assert run.report is not None
    assert run.report.finish_reason is FinishReason.STOP
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(run), 1)


async def test_closing_a_run_ends_its_task_and_leaves_a_report(engine: Engine) -> None:
    run = engine.run()

    async def speak() -> None:
        run.push(chunk(0))
        await forever()

    engine.serve(run, speak)
    assert (await anext(run)).index == 0
    await asyncio.wait_for(run.aclose(), 1)
    assert run.report is not None
    assert run.report.finish_reason is FinishReason.ABORTED
    assert (engine.freed, engine.tasks()) == (1, 0)


async def test_closing_before_the_engine_began_still_ends_with_a_report(engine: Engine) -> None:
    run = engine.run()
    blocked = threading.Event()
    engine.loop.call_soon_threadsafe(blocked.wait, 5)
    engine.serve(run, forever)
    closing = asyncio.create_task(run.aclose())
    await asyncio.sleep(0.05)
    assert not closing.done()
    blocked.set()
    await asyncio.wait_for(closing, 1)
    assert run.report is not None
    assert run.report.finish_reason is FinishReason.ABORTED
    assert (engine.freed, engine.tasks()) == (1, 0)


async def test_cancelling_before_serving_begins_prevents_it(engine: Engine) -> None:
    run = engine.run()
    run.cancel()
    engine.tasks()  # the loop has seen the cancellation by now
    spoken: list[int] = []

    async def speak() -> None:
        spoken.append(1)

    engine.serve(run, speak)
    assert [chunk async for chunk in run] == []
    assert (spoken, engine.freed) == ([], 1)


async def test_closing_twice_is_closing_once(engine: Engine) -> None:
    run = engine.run()
    engine.serve(run, forever)
    await asyncio.wait_for(run.aclose(), 1)
    report = run.report
    await asyncio.wait_for(run.aclose(), 1)
    assert run.report is report
    assert engine.freed == 1


async def test_only_the_first_cancellation_reaches_the_task(engine: Engine) -> None:
    """A second one would break into vLLM-Omni's clean-up of the first."""
    run = engine.run()
    cleaned: list[str] = []

    async def speak() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.05)
            cleaned.append("up")

    engine.serve(run, speak)
    for _ in range(3):
        engine.tasks()  # the loop has seen what came before
        run.cancel()
    await asyncio.wait_for(run.aclose(), 1)
    assert cleaned == ["up"]


async def test_a_cancelled_wait_for_a_chunk_loses_nothing(engine: Engine) -> None:
    run = engine.run()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(run), 0.01)
    waiting = asyncio.create_task(run.__anext__())
    await asyncio.sleep(0)
    run.push(chunk(0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    run.push(chunk(1))
    run.push(None)
    assert [chunk.index async for chunk in run] == [0, 1]


async def test_an_error_is_raised_once_then_the_run_has_ended(engine: Engine) -> None:
    run = engine.run()
    run.push(chunk(0))
    run.push(died("talker gone"))
    run.push(None)
    assert (await anext(run)).index == 0
    with pytest.raises(EngineUnavailable, match=r"^The speech engine has stopped \(talker gone\)"):
        await anext(run)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(run), 1)
    await asyncio.wait_for(run.aclose(), 1)


async def test_chunks_made_after_closing_are_not_delivered(engine: Engine) -> None:
    run = engine.run()

    async def speak() -> None:
        try:
            await forever()
        finally:
            run.push(chunk(0))

    engine.serve(run, speak)
    engine.tasks()
    await asyncio.wait_for(run.aclose(), 1)
    run.push(chunk(1))
    assert [chunk async for chunk in run] == []


async def test_closing_gives_up_on_stages_that_never_let_go(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.run.CLOSE_TIMEOUT_S", 0.2)
    run = engine.run()
    began = time.monotonic()
    await run.aclose()  # nobody serves it
    assert 0.15 < time.monotonic() - began < 1


async def test_closing_after_the_engine_s_loop_has_gone_returns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.run.CLOSE_TIMEOUT_S", 0.2)
    run = engine.run()
    engine.close()
    await asyncio.wait_for(run.aclose(), 1)


def test_a_caller_whose_loop_has_gone_does_not_hurt_the_engine(engine: Engine) -> None:
    async def call() -> EngineRun:
        return engine.run()

    run = asyncio.run(call())

    async def speak() -> None:
        for index in range(3):
            run.push(chunk(index))

    engine.serve(run, speak)
    assert engine.tasks() == 0
    assert run.report is not None
    assert run.report.finish_reason is FinishReason.STOP


async def test_ahead_is_asked_anew_each_time(engine: Engine) -> None:
    queue = [3, 1, 0]
    run = engine.run(ahead=lambda: queue.pop(0))
    assert [run.ahead, run.ahead, run.ahead] == [3, 1, 0]


async def test_runs_have_ids_of_their_own(engine: Engine) -> None:
    assert len({engine.run().request_id for _ in range(100)}) == 100
