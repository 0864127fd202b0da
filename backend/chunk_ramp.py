"""Chunk sizes that grow from the first chunk a request asks for.

vLLM-Omni takes either a fixed ramp or a per-request first chunk, never both. This
puts the request's own ramp where vLLM-Omni caches the configured one.
"""

from collections.abc import Sequence
from typing import Any

# As a stage's engine option: which function cuts the talker's frames into chunks.
CHUNK_RAMP_HOOK = (
    "custom_process_next_stage_input_func",
    "backend.chunk_ramp.talker2code2wav_async_chunk",
)


def ramp_from_first_chunk(first: int | None, ramp: Sequence[int], steady: int) -> tuple[int, ...]:
    """The ramp started at `first` frames (None: as it is), never shrinking, ending at `steady`."""
    start = min(ramp[0] if first is None else first, steady)
    sizes = [start, *(max(start, size) for size in ramp[1:]), steady]
    while len(sizes) > 1 and sizes[-2] == steady:
        sizes.pop()
    return tuple(sizes)


def talker2code2wav_async_chunk(
    transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool = False
) -> Any:
    """vLLM-Omni's function of the same name, with the ramp of this request."""
    from vllm_omni.model_executor.stage_input_processors import qwen3_tts

    extra = transfer_manager.connector.config
    extra = extra.get("extra", extra)
    steady = int(extra["codec_chunk_frames"])
    ramp = ramp_from_first_chunk(_first_chunk_frames(request), extra["codec_chunk_ramp"], steady)
    transfer_manager._ramp_parsed = list(ramp)
    return qwen3_tts.talker2code2wav_async_chunk(transfer_manager, multimodal_output, request, is_finished)


def _first_chunk_frames(request: Any) -> int | None:
    information = getattr(request, "additional_information", None)
    entry = getattr(information, "entries", {}).get("initial_codec_chunk_frames")
    return int(entry.list_data[0]) if entry is not None and entry.list_data else None
