"""Chunk sizes that grow from the first chunk a request asks for.

vLLM-Omni takes either a fixed ramp or a per-request first chunk, never both. This
puts the request's own ramp where vLLM-Omni caches the configured one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any


def ramp_from_first_chunk(first: int | None, ramp: Sequence[int], steady: int) -> tuple[int, ...]:
    """The ramp started at `first` frames (None: as it is), never shrinking, ending at `steady`."""
    start = min(ramp[0] if first is None else first, steady)
    sizes = [start, *(max(start, size) for size in ramp[1:]), steady]
    while len(sizes) > 1 and sizes[-2] == steady:
        sizes.pop()
    return tuple(sizes)


def register_request_ramps() -> None:
    """Puts `talker2code2wav_async_chunk` into the Qwen3-TTS pipeline; call before the engine is made."""
    from vllm_omni.config.pipeline_registry import register_pipeline
    from vllm_omni.model_executor.models.qwen3_tts.pipeline import QWEN3_TTS_PIPELINE

    talker, decoder = QWEN3_TTS_PIPELINE.stages
    chunker = f"{__name__}.{talker2code2wav_async_chunk.__name__}"
    talker = replace(talker, async_chunk_process_next_stage_input_func=chunker)
    register_pipeline(replace(QWEN3_TTS_PIPELINE, stages=(talker, decoder)))


def talker2code2wav_async_chunk(
    transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool = False
) -> Any:
    """vLLM-Omni's function of the same name, with this request's ramp where there is one."""
    from vllm_omni.model_executor.stage_input_processors import qwen3_tts

    extra = transfer_manager.connector.config
    extra = extra.get("extra", extra)
    if ramp := extra.get("codec_chunk_ramp"):
        first = _first_chunk_frames(request)
        transfer_manager._ramp_parsed = list(ramp_from_first_chunk(first, ramp, extra["codec_chunk_frames"]))
    return qwen3_tts.talker2code2wav_async_chunk(transfer_manager, multimodal_output, request, is_finished)


def _first_chunk_frames(request: Any) -> int | None:
    information = getattr(request, "additional_information", None)
    entry = getattr(information, "entries", {}).get("initial_codec_chunk_frames")
    return int(entry.list_data[0]) if entry is not None and entry.list_data else None
