from types import SimpleNamespace
from typing import Any

import pytest

from backend.chunk_ramp import ramp_from_first_chunk, register_request_ramps, talker2code2wav_async_chunk

RAMP = [4, 5, 6, 8, 25]


@pytest.mark.parametrize(
    ("first", "sizes"),
    [
        (None, (4, 5, 6, 8, 25)),
        (1, (1, 5, 6, 8, 25)),
        (6, (6, 6, 6, 8, 25)),
        (25, (25,)),
        (40, (25,)),
    ],
)
def test_ramp_starts_where_the_request_says(first: int | None, sizes: tuple[int, ...]) -> None:
    assert ramp_from_first_chunk(first, RAMP, 25) == sizes


def test_a_ramp_that_stops_short_ends_at_the_ordinary_size() -> None:
    assert ramp_from_first_chunk(None, [4, 8], 25) == (4, 8, 25)


def chunks_of(first: int | None, frames: int, extra: dict[str, Any]) -> list[int]:
    """Frames in each chunk vLLM-Omni sends for an utterance of `frames` frames."""
    torch = pytest.importorskip("torch")
    from collections import defaultdict

    manager = SimpleNamespace(
        connector=SimpleNamespace(config={"extra": extra}),
        code_prompt_token_ids=defaultdict(list),
        put_req_chunk=defaultdict(int),
        ramp_chunk_count=defaultdict(int),
    )
    entries = {} if first is None else {"initial_codec_chunk_frames": SimpleNamespace(list_data=[first])}
    request = SimpleNamespace(
        external_req_id="r",
        additional_information=SimpleNamespace(entries=entries),
        is_finished=lambda: False,
    )
    sent = []
    for index in range(frames):
        output = {"codes": {"audio": torch.full((1, 16), index + 1)}}
        payload = talker2code2wav_async_chunk(manager, output, request, is_finished=index == frames - 1)
        if payload is not None:
            sent.append(payload.codes.audio.numel() // 16)
            manager.put_req_chunk["r"] += 1
            manager.ramp_chunk_count["r"] += 1
    return sent


@pytest.mark.parametrize(
    ("first", "sizes"),
    [(None, [4, 5, 6, 8, 25, 12]), (1, [1, 5, 6, 8, 25, 15]), (8, [8, 8, 8, 8, 25, 3]), (25, [25, 25, 10])],
)
def test_vllm_omni_cuts_chunks_by_the_requests_ramp(first: int | None, sizes: list[int]) -> None:
    pytest.importorskip("vllm_omni")
    extra = {"codec_chunk_frames": 25, "codec_left_context_frames": 72, "codec_chunk_ramp": RAMP}
    assert chunks_of(first, 60, extra) == sizes


def test_without_a_ramp_the_first_chunk_is_vllm_omnis_business() -> None:
    pytest.importorskip("vllm_omni")
    extra = {"codec_chunk_frames": 25, "codec_left_context_frames": 72, "initial_codec_chunk_frames": 4}
    assert chunks_of(None, 60, extra) == [4, 25, 25, 6]
    assert chunks_of(2, 60, extra) == [2, 25, 25, 8]


def test_registering_changes_nothing_but_the_chunker(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("vllm_omni.config.pipeline_registry")
    original = registry.OMNI_PIPELINES["qwen3_tts"]
    monkeypatch.setitem(registry.OMNI_PIPELINES, "qwen3_tts", original)
    register_request_ramps()
    talker, decoder = registry.OMNI_PIPELINES["qwen3_tts"].stages
    chunker = "backend.chunk_ramp.talker2code2wav_async_chunk"
    assert talker.async_chunk_process_next_stage_input_func == chunker
    assert decoder == original.stages[1]
    assert (
        talker.custom_process_next_stage_input_func == original.stages[0].custom_process_next_stage_input_func
    )
