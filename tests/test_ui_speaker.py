"""The handler without a browser: what it yields, and that it always lets go of the engine."""

import asyncio
import base64
from typing import Any

import gradio as gr
import numpy as np
import pytest

from backend.contract import Phase
from tests.fakes import NAMED_SPEAKERS, FakeSpeechEngine, fake_clip_loader
from ui.heartbeat import HEARTBEAT_S
from ui.request import Fields
from ui.run_view import RunState, RunView, rtf_text
from ui.speaker import Speaker


def fast(**settings: Any) -> FakeSpeechEngine:
    return FakeSpeechEngine(NAMED_SPEAKERS, **({"ttfa_s": 0.0, "rtf": 0.01} | settings))


def speaker_for(engine: FakeSpeechEngine) -> Speaker:
    return Speaker(engine, [], fake_clip_loader)


def is_chunk(value: Any) -> bool:
    return "pcm" in value


async def speak(engine: FakeSpeechEngine, fields: Fields, run_id: str = "run") -> list[Any]:
    return [update async for update in speaker_for(engine).speak(fields, None, run_id)]


async def test_chunks_are_numbered_and_add_up_to_the_clip() -> None:
    engine = fast()
    updates = await speak(engine, Fields("Hello"))
    chunks = [chunk for chunk, _, _ in updates if is_chunk(chunk)]
    pieces = [np.frombuffer(base64.b64decode(c["pcm"]), "<i2") for c in chunks if not c["end"]]
    assert [c["seq"] for c in chunks if not c["end"]] == [0, 1, 2, 3, 4]
    assert {c["run_id"] for c in chunks} == {"run"}
    last_chunk, (rate, clip), view = updates[-1]
    assert last_chunk["end"]
    assert last_chunk["seq"] == 5
    assert rate == 24_000
    np.testing.assert_array_equal(np.concatenate(pieces), engine.runs[0].pcm)
    np.testing.assert_array_equal(clip, engine.runs[0].pcm)
    assert view.state is RunState.FINISHED


async def test_the_end_of_the_stream_is_told_before_the_clip_is_made() -> None:
    updates = await speak(fast(), Fields("Hello"))
    assert [chunk["end"] for chunk, _, _ in updates[-3:]] == [False, True, True]
    assert not isinstance(updates[-2][1], tuple)


async def test_final_figures_are_the_report_s() -> None:
    engine = fast(frames=25, rtf=0.2)
    view: RunView = (await speak(engine, Fields("Hello", seed="5")))[-1][2]
    report = engine.runs[0].report
    assert report
    assert (view.seed, view.chunks, view.audio_s, view.mode) == (5, report.chunks, 2.0, "eager")
    assert view.rtf == report.rtf
    assert view.ttfa_s == report.ttfa_s


async def test_it_yields_often_while_no_chunk_comes() -> None:
    engine = fast(ttfa_s=4 * HEARTBEAT_S)
    loop = asyncio.get_running_loop()
    times = [loop.time()]
    async for _ in speaker_for(engine).speak(Fields("Hello"), None, "run"):
        times.append(loop.time())
    assert max(np.diff(times)) < 0.5 + 0.1
    assert len(times) > 8


async def test_closing_the_handler_closes_the_run() -> None:
    engine = fast(ttfa_s=60.0)
    handler = speaker_for(engine).speak(Fields("Hello"), None, "run")
    await anext(handler)
    await anext(handler)
    assert engine.status.running == 1
    await handler.aclose()
    assert engine.runs[0].closed
    assert engine.status.running == 0


async def test_cancelling_the_handler_closes_the_run() -> None:
    engine = fast(ttfa_s=60.0)
    task = asyncio.create_task(speak(engine, Fields("Hello")))
    await asyncio.sleep(0.2)
    assert engine.status.running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.runs[0].closed
    assert engine.status.running == 0


async def test_stop_ends_a_run_that_is_still_waiting_for_its_first_chunk() -> None:
    engine = fast(ttfa_s=60.0)
    speaker = speaker_for(engine)
    updates = []
    async for update in speaker.speak(Fields("Hello"), None, "run"):
        updates.append(update)
        if engine.runs:
            await speaker.stop("run")
    assert updates[-1][1] is None
    assert updates[-1][2].state is RunState.STOPPED
    assert engine.status.running == 0


async def test_stop_that_overtakes_its_run_still_stops_it() -> None:
    engine = fast(ttfa_s=60.0)
    speaker = speaker_for(engine)
    await speaker.stop("run")
    updates = [update async for update in speaker.speak(Fields("Hello"), None, "run")]
    assert updates[-1][2].state is RunState.STOPPED
    assert engine.status.running == 0
    again = fast()
    assert (await speak(again, Fields("Hello")))[-1][2].state is RunState.FINISHED


async def test_stop_of_another_run_changes_nothing() -> None:
    engine = fast()
    speaker = speaker_for(engine)
    await speaker.stop("other")
    updates = [update async for update in speaker.speak(Fields("Hello"), None, "run")]
    assert updates[-1][2].state is RunState.FINISHED


async def failing(engine: FakeSpeechEngine, fields: Fields) -> tuple[list[Any], str]:
    """The updates and the sentence of a run that is to end in a gr.Error."""
    updates = []
    try:
        async for update in speaker_for(engine).speak(fields, None, "run"):
            updates.append(update)
    except gr.Error as error:
        return updates, error.message
    pytest.fail("the run did not fail")


async def test_a_failure_midway_keeps_the_audio_so_far() -> None:
    engine = fast(fail_after_chunks=2)
    updates, message = await failing(engine, Fields("Hello"))
    assert message == "The talker stage has died."
    _, (_, clip), view = updates[-1]
    np.testing.assert_array_equal(clip, engine.runs[0].pcm[: 8 * 1920])
    assert (view.state, view.message) == (RunState.FAILED, message)
    assert engine.runs[0].closed


async def test_an_unknown_error_is_logged_and_kept_from_the_visitor(caplog: pytest.LogCaptureFixture) -> None:
    engine = fast(fail_after_chunks=0, failure=ZeroDivisionError("secret path"))
    _, message = await failing(engine, Fields("Hello"))
    assert message == "Something went wrong on the server; its log has the details."
    assert "ZeroDivisionError: secret path" in caplog.text


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        (Phase.LOADING, "The speech engine is still loading (out of memory); try again in a moment."),
        (Phase.FAILED, "The speech engine has failed (out of memory); restart the app."),
        (Phase.CLOSED, "The speech engine has been shut down; restart the app."),
    ],
)
async def test_an_engine_that_is_not_ready_is_named(phase: Phase, sentence: str) -> None:
    _, message = await failing(fast(phase=phase, detail="out of memory"), Fields("Hello"))
    assert message == sentence


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (Fields(""), "no text"),
        (Fields(" \n\t"), "no text"),
        (Fields("x" * 20_000), "20000 characters; the limit is 600"),
        (Fields("half \ud800 a pair"), "surrogate"),
        (Fields("Hello", language="Klingon"), "Klingon"),
        (Fields("Hello", voice="Nobody"), "Nobody"),
    ],
)
async def test_bad_input_is_refused_with_the_engine_s_sentence(fields: Fields, sentence: str) -> None:
    engine = fast()
    _, message = await failing(engine, fields)
    assert sentence in message
    assert not engine.runs


async def test_a_task_the_model_cannot_do_is_refused() -> None:
    engine = fast()
    with pytest.raises(gr.Error, match="cannot do 'Base'; it can do CustomVoice"):
        async for _ in speaker_for(engine).speak(Fields("Hello"), "Base", "run"):
            pass


def test_rtf_is_shown_with_its_speed() -> None:
    assert rtf_text(0.16) == "0.16 (6.2x real time)"
    assert rtf_text(None) == ""
