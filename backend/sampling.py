"""Sampling parameters of one request, over the stage configuration's."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from backend.contract import SpeechRequest


def sampling_params(
    defaults: Sequence[Any],
    request: SpeechRequest,
    seed: int,
    limit_frames: int,
    extra_args: Mapping[str, Any],
) -> list[Any]:
    """vLLM `SamplingParams`, one a stage: copies of `defaults` with the request's own in their place.

    `extra_args` are the family's, for the first stage.
    """
    from vllm.sampling_params import RequestOutputKind

    stages = [copy.deepcopy(params) for params in defaults]
    for params in stages:
        params.output_kind = RequestOutputKind.DELTA
    talker = stages[0]
    # Of the first code of each frame; the code predictor has its own (see `predictor_request`).
    talker.seed = seed
    if extra_args:
        talker.extra_args = {**(talker.extra_args or {}), **extra_args}
    talker.max_tokens = limit_frames
    talker.min_tokens = min(talker.min_tokens, limit_frames)
    if request.temperature is not None:
        talker.temperature = request.temperature
    if request.top_k is not None:
        talker.top_k = request.top_k
    return stages
