"""How much of the machine each stage takes, computed from the machine and the checkpoint.

vLLM-Omni's own deploy file asks for 0.3 + 0.3 of any card, which is 84 GB of a large one
and too little of a small one.
"""

import math
from collections.abc import Mapping, Sequence

from backend.contract import SpeechError
from backend.stage_schema import DECODER_STAGE, TALKER_STAGE

GIB = 1024**3
MIB = 1024**2

# One talker step and its sampler; the decoder on a whole 300-frame window, in bfloat16.
TALKER_WORKSPACE_BYTES = int(1.5 * GIB)
DECODER_WORKSPACE_BYTES = 2 * GIB
# CUDA graphs are recorded after the stages have sized themselves, and each process keeps a
# CUDA context: outside every fraction. As vLLM-Omni counts for stages that start side by
# side: 2 GiB of graphs a stage and 2 GiB for the rest.
OUTSIDE_BYTES = 6 * GIB
# Prompt and a minute of speech: what a request is expected to use of its max_model_len.
TYPICAL_REQUEST_TOKENS = 1024
# The decoder has no attention cache, but vLLM asks for the size of one.
DECODER_KV_CACHE_BYTES = 16 * MIB
# vLLM hands out the cache in blocks, one of them kept empty.
KV_CACHE_SLACK = 1.1


class MemoryBudgetError(SpeechError):
    """The model does not fit this machine; the message says by how much."""


def memory_fractions(
    total_bytes: int,
    *,
    talker_bytes: int,
    decoder_bytes: int,
    kv_bytes_per_token: int,
    max_model_len: int,
    max_num_seqs: int,
    given: Mapping[int, float] | None = None,
) -> dict[int, float]:
    """`gpu_memory_utilization` of each stage, both on one card of `total_bytes`.

    Weights and workspace are taken as they are. The talker's attention cache is sized for
    `max_num_seqs` typical requests, less where the card is small, but never for less than
    one request of `max_model_len` tokens, which vLLM insists on. A share `given` by hand is
    kept. Raises MemoryBudgetError if the model, or what is left of it, does not fit.
    """
    one_request = int(kv_bytes_per_token * max_model_len * KV_CACHE_SLACK)
    typical = int(
        kv_bytes_per_token * max_num_seqs * min(max_model_len, TYPICAL_REQUEST_TOKENS) * KV_CACHE_SLACK
    )
    weights = talker_bytes + TALKER_WORKSPACE_BYTES
    needed = {
        TALKER_STAGE: weights + one_request,
        DECODER_STAGE: decoder_bytes + DECODER_WORKSPACE_BYTES,
    }
    least_bytes = OUTSIDE_BYTES + sum(needed.values())
    if total_bytes < least_bytes:
        raise MemoryBudgetError(
            f"The model needs a GPU with at least {least_bytes / GIB:.1f} GiB of memory and this one has "
            f"{total_bytes / GIB:.1f} GiB; choose a smaller model or run with --device cpu."
        )
    given = given or {}
    for stage, share in given.items():
        least = needed[stage] / total_bytes
        most = 1 - sum(needed[other] / total_bytes for other in needed if other != stage)
        if not least <= share <= most:
            raise MemoryBudgetError(
                f"On this card gpu_memory_utilization of stage {stage} must be from "
                f"{math.ceil(least * 1e3) / 1e3} to {math.floor(most * 1e3) / 1e3}, not {share}; "
                "or leave it out."
            )
    taken = max(int(given.get(DECODER_STAGE, 0) * total_bytes), needed[DECODER_STAGE])
    wanted = max(needed[TALKER_STAGE], min(weights + typical, total_bytes - OUTSIDE_BYTES - taken))
    computed = {
        TALKER_STAGE: _fraction(wanted, total_bytes),
        DECODER_STAGE: _fraction(needed[DECODER_STAGE], total_bytes),
    }
    return computed | dict(given)


def talker_kv_cache_bytes(fraction: float, total_bytes: int, talker_bytes: int) -> int:
    """The attention cache in the talker's `fraction` of the card, once weights and workspace are in.

    Given to vLLM, which would otherwise measure what is free on the whole card while the
    other stage is starting on it too, and find nothing.
    """
    return int(fraction * total_bytes) - talker_bytes - TALKER_WORKSPACE_BYTES


def kv_cache_bytes(*, kv_bytes_per_token: int, max_model_len: int, max_num_seqs: int) -> dict[int, int]:
    """`kv_cache_memory_bytes` of each stage on a CPU: every request may reach `max_model_len`."""
    talker = int(kv_bytes_per_token * max_model_len * max_num_seqs * KV_CACHE_SLACK)
    return {TALKER_STAGE: talker, DECODER_STAGE: DECODER_KV_CACHE_BYTES}


def split_cores(cores: Sequence[int]) -> dict[int, dict[str, str]]:
    """Environment that binds each stage to its own half of `cores`, the talker to the larger.

    With one core there is nothing to split: both are then left where the system puts them.
    """
    if len(cores) < 2:
        return {stage: {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} for stage in (TALKER_STAGE, DECODER_STAGE)}
    half = (len(cores) + 1) // 2
    return {
        stage: {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, part))}
        for stage, part in ((TALKER_STAGE, cores[:half]), (DECODER_STAGE, cores[half:]))
    }


def _fraction(stage_bytes: int, total_bytes: int) -> float:
    # Down to four digits: both rounded up could ask for more than there is.
    return int(stage_bytes / total_bytes * 10_000) / 10_000
