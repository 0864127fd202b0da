"""Streams, seeds, voices and limits."""

import asyncio
import os
import threading
from dataclasses import replace
from itertools import chain, pairwise, repeat

import numpy as np
import pytest

from backend import long_text
from backend.contract import FinishReason, Mode, SpeechRequest
from backend.engine import OmniSpeechEngine
from backend.joins import Joiner
from tests.engine.in_process.speaking import (
    CONCURRENCY_LIMIT,
    SAMPLES_PER_FRAME,
    VOICES,
    Speech,
    in_context,
    request,
    speak,
)
from tests.engine.processes import below_mib, held_mib


def cut(schedule: tuple[int, ...], total: float) -> list[float]:
    """`total` frames cut into chunks by `schedule`, whose last entry repeats."""
    sizes: list[float] = []
    for size in chain(schedule, repeat(schedule[-1])):
        if total <= 0:
            break
        sizes.append(min(size, total))
        total -= size
    return sizes


def assert_sound(speech: Speech) -> None:
    assert speech.pcm.dtype == np.int16
    assert np.abs(speech.pcm.astype(np.int32)).max() > 300
    assert len(np.unique(speech.pcm)) > 1000


async def test_speech_streams_in_order_by_the_schedule_and_ends_by_itself(engine: OmniSpeechEngine) -> None:
    speech = await speak(engine, request(text="One, two, three, four, five, six, seven. " * 3))
    capabilities = engine.capabilities
    assert capabilities is not None
    assert speech.report.finish_reason is FinishReason.STOP
    assert_sound(speech)
    assert [chunk.index for chunk in speech.chunks] == list(range(len(speech.chunks)))
    assert {chunk.sample_rate_hz for chunk in speech.chunks} == {24_000}
    schedule = capabilities.chunk_schedule_frames
    assert len(speech.chunks) > 5
    assert speech.chunk_frames == cut(schedule, sum(speech.chunk_frames))
    assert all(later >= earlier for earlier, later in pairwise(speech.chunk_frames[:-1]))


async def test_report_agrees_with_the_chunks_and_with_itself(engine: OmniSpeechEngine) -> None:
    speech = await speak(engine, request())
    report = speech.report
    assert report.chunks == len(speech.chunks)
    assert len(speech.pcm) == report.frames * SAMPLES_PER_FRAME
    assert report.audio_s == pytest.approx(len(speech.pcm) / 24_000)
    assert report.seed == 7
    assert report.mode == engine.capabilities.mode  # type: ignore[union-attr]
    elapsed = [chunk.elapsed_s for chunk in speech.chunks]
    assert all(later > earlier for earlier, later in pairwise(elapsed))
    assert report.ttfa_s == elapsed[0]
    assert 0 < elapsed[0] < elapsed[-1] <= report.total_s
    assert report.rtf == pytest.approx(report.total_s / report.audio_s)
    assert 0 <= report.queue_s < 0.1


async def test_the_recent_speed_follows_what_runs_report(engine: OmniSpeechEngine) -> None:
    before = engine.status.recent_rtf
    assert before is not None
    report = (await speak(engine, request(max_frames=10))).report
    after = engine.status.recent_rtf
    assert report.rtf is not None
    assert after == pytest.approx(before + 0.3 * (report.rtf - before))


async def test_a_seed_decides_the_samples(engine: OmniSpeechEngine) -> None:
    first = await speak(engine, request(max_frames=30))
    again = await speak(engine, request(max_frames=30))
    other = await speak(engine, request(max_frames=30, seed=8))
    np.testing.assert_array_equal(again.pcm, first.pcm)
    assert not np.array_equal(other.pcm, first.pcm)


async def test_without_a_seed_each_run_gets_its_own_and_it_can_be_used_again(
    engine: OmniSpeechEngine,
) -> None:
    first = await speak(engine, request(seed=None, max_frames=15))
    second = await speak(engine, request(seed=None, max_frames=15))
    again = await speak(engine, request(seed=first.report.seed, max_frames=15))
    assert first.report.seed != second.report.seed
    assert not np.array_equal(first.pcm, second.pcm)
    np.testing.assert_array_equal(again.pcm, first.pcm)


async def test_a_run_sounds_the_same_alone_and_beside_others(engine: OmniSpeechEngine) -> None:
    asked = [request(voice, seed=20 + voice, max_frames=40) for voice in range(CONCURRENCY_LIMIT)]
    alone = [await speak(engine, one) for one in asked]
    together = await asyncio.gather(*(speak(engine, one) for one in asked))
    for solo, beside in zip(alone, together, strict=True):
        assert beside.report.queue_s < 0.1
        np.testing.assert_array_equal(beside.pcm, solo.pcm)


async def test_streaming_off_gives_the_same_length_in_one_chunk(engine: OmniSpeechEngine) -> None:
    streamed = await speak(engine, request())
    whole = await speak(engine, request(stream=False))
    assert len(whole.chunks) == 1
    assert len(whole.pcm) == len(streamed.pcm)
    assert (whole.report.frames, whole.report.chunks) == (streamed.report.frames, 1)
    assert whole.report.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("voice", range(len(VOICES)), ids=[voice.name for voice in VOICES])
async def test_every_preset_voice_speaks_both_ways(engine: OmniSpeechEngine, voice: int) -> None:
    by_x_vector, by_context = await asyncio.gather(
        speak(engine, request(voice, max_frames=20)), speak(engine, in_context(voice, max_frames=20))
    )
    assert_sound(by_x_vector)
    assert_sound(by_context)
    assert not np.array_equal(by_x_vector.pcm, by_context.pcm)


async def test_another_voice_gives_other_samples(engine: OmniSpeechEngine) -> None:
    first, second = await asyncio.gather(*(speak(engine, request(voice, max_frames=15)) for voice in (0, 1)))
    assert not np.array_equal(first.pcm, second.pcm)


async def test_an_in_context_clone_speaks_only_the_text_and_ends_by_itself(engine: OmniSpeechEngine) -> None:
    speech = await speak(engine, in_context())
    assert speech.report.finish_reason is FinishReason.STOP
    assert len(speech.pcm) == speech.report.frames * SAMPLES_PER_FRAME
    assert engine.capabilities is not None
    assert speech.chunk_frames == cut(engine.capabilities.chunk_schedule_frames, sum(speech.chunk_frames))
    assert 1 < speech.report.audio_s < 10


@pytest.mark.parametrize("first", [1, 8])
async def test_the_first_chunk_is_as_long_as_asked_for(engine: OmniSpeechEngine, first: int) -> None:
    assert engine.capabilities is not None
    schedule = engine.capabilities.chunk_schedule_frames
    speech = await speak(engine, request(first_chunk_frames=first, max_frames=40))
    ramp = (first, *(max(first, size) for size in schedule[1:]))
    assert speech.chunk_frames == cut(ramp, speech.report.frames)
    assert len(speech.chunks) > 3
    usual = await speak(engine, request(max_frames=40))
    assert usual.chunk_frames == cut(schedule, usual.report.frames)


@pytest.mark.parametrize(("limit", "stream"), [(2, True), (30, True), (30, False)])
async def test_a_run_that_reaches_its_limit_says_so(
    engine: OmniSpeechEngine, limit: int, stream: bool
) -> None:
    speech = await speak(engine, request(max_frames=limit, stream=stream))
    assert speech.report.finish_reason is FinishReason.LENGTH
    # The last token's residual codes are never predicted.
    assert speech.report.frames == limit - 1
    assert len(speech.pcm) == (limit - 1) * SAMPLES_PER_FRAME


async def test_sampling_settings_reach_the_talker(engine: OmniSpeechEngine) -> None:
    plain = await speak(engine, request(max_frames=15))
    for changed in (request(max_frames=15, top_k=1), request(max_frames=15, temperature=0.1)):
        assert not np.array_equal((await speak(engine, changed)).pcm, plain.pcm)


@pytest.mark.parametrize(
    "text",
    ["a", "7", "hi 👋🏽", "\ud83dhalf a pair", "nul\x00 and escape\x1b", "שלום עולם", "你好世界", "x" * 300],
)
async def test_unusual_text_is_spoken(engine: OmniSpeechEngine, text: str) -> None:
    assert (await speak(engine, request(text=text, max_frames=8))).report.frames > 0


async def test_the_longest_text_is_spoken(engine: OmniSpeechEngine) -> None:
    assert (await speak(engine, request(text="word " * 400, max_frames=8))).report.frames == 7


@pytest.mark.parametrize("stream", [True, False])
async def test_long_text_is_spoken_piece_by_piece_in_order_and_with_one_voice(
    engine: OmniSpeechEngine, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = ["This is the first one.", "Here comes the second.", "And this one ends it."]
    alone = [await speak(engine, request(text=sentence, stream=stream)) for sentence in sentences]
    monkeypatch.setattr(long_text, "PIECE_WEIGHT", 25)
    speech = await speak(engine, request(text=" ".join(sentences), stream=stream))
    joiner = Joiner(24_000)
    parts = []
    for each in alone:
        parts += [joiner.add(chunk.pcm) for chunk in each.chunks]
        parts.append(joiner.end_piece())
    expected = np.concatenate(parts[:-1])
    np.testing.assert_array_equal(speech.pcm[: len(expected)], expected)
    assert speech.report.frames == sum(each.report.frames for each in alone)
    assert speech.report.finish_reason is FinishReason.STOP
    assert [chunk.index for chunk in speech.chunks] == list(range(speech.report.chunks))
    assert (len(speech.chunks) == 1) is not stream


async def test_a_limit_holds_for_all_pieces_together(
    engine: OmniSpeechEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_text, "PIECE_WEIGHT", 25)
    long = "Here comes another one. " * 10
    speech = await speak(engine, request(text=long, max_frames=60))
    assert speech.report.finish_reason is FinishReason.LENGTH
    assert 57 <= speech.report.frames <= 59


async def test_every_language_is_spoken(engine: OmniSpeechEngine) -> None:
    assert engine.capabilities is not None
    languages = engine.capabilities.languages
    spoken = await asyncio.gather(
        *(speak(engine, request(language=language, max_frames=5)) for language in languages[:4])
    )
    for speech in spoken:
        assert speech.report.frames == 4


def test_callers_on_loops_of_their_own_are_served_at_the_same_time(engine: OmniSpeechEngine) -> None:
    asked = request(max_frames=20)
    results: dict[int, Speech] = {}
    barrier = threading.Barrier(2)

    def caller(number: int, own: SpeechRequest) -> None:
        barrier.wait()
        results[number] = asyncio.run(speak(engine, own))

    threads = [
        threading.Thread(target=caller, args=(number, replace(asked, seed=number))) for number in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [1, 2]
    assert not np.array_equal(results[1].pcm, results[2].pcm)
    for number, speech in results.items():
        alone = asyncio.run(speak(engine, replace(asked, seed=number)))
        np.testing.assert_array_equal(speech.pcm, alone.pcm)


async def test_ten_runs_grow_no_memory(engine: OmniSpeechEngine) -> None:
    await speak(engine, request())
    before_mib = held_mib(os.getpid())
    for seed in range(10):
        await speak(engine, request(seed=seed, max_frames=40))
    assert held_mib(os.getpid()) - before_mib < 50


async def test_its_stages_fit_a_small_machine(engine: OmniSpeechEngine) -> None:
    await speak(engine, request())
    assert below_mib(os.getpid()) < 4 * 1024


async def test_the_report_tells_what_each_frame_took_and_how_it_was_made(engine: OmniSpeechEngine) -> None:
    speech = await speak(engine, request())
    report, stats = speech.report, speech.report.frame_stats
    assert stats is not None
    # The end of speech is predicted like a frame, and is none.
    assert 0 <= stats.frames - report.frames <= 1
    assert stats.predictor_ms is not None
    assert stats.talker_ms is not None
    per_frame_ms = stats.predictor_ms + stats.talker_ms
    assert 0.1 < stats.predictor_ms < per_frame_ms < 1e3 * report.total_s / report.frames * 1.2
    assert (report.mode, stats.graph_frames, stats.fallbacks) == (Mode.EAGER, 0, 0)


async def test_a_graph_where_there_is_none_is_made_eager_and_the_report_says_why(
    engine: OmniSpeechEngine,
) -> None:
    eager = await speak(engine, request(mode=Mode.EAGER))
    asked = await speak(engine, request(mode=Mode.GRAPH))
    stats = asked.report.frame_stats
    assert stats is not None
    if stats.graph_frames:
        pytest.skip("there is a CUDA graph here")
    assert asked.report.mode == Mode.EAGER
    assert stats.fallbacks == stats.frames
    assert asked.report.notes == (
        f"{stats.frames} of {stats.frames} frames ran eager: there is no CUDA graph on the CPU.",
    )
    assert np.array_equal(asked.pcm, eager.pcm)


async def test_the_predictor_s_own_sampling_changes_what_is_said(engine: OmniSpeechEngine) -> None:
    usual, greedy, again = [
        await speak(engine, request(max_frames=12, predictor_temperature=temperature))
        for temperature in (None, 0.0, 0.0)
    ]
    assert not np.array_equal(usual.pcm, greedy.pcm)
    assert np.array_equal(greedy.pcm, again.pcm)
