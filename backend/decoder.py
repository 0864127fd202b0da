"""vLLM-Omni's codec decoder, keeping as much of a run's past as the next chunk needs.

Registered under upstream's architecture name (see `backend.plugins`), in every process.
"""

import copy
from typing import Any

from vllm.config import VllmConfig
from vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_code2wav import Qwen3TTSCode2Wav

# How far the convolutions around the transformer look back (_DOWNSTREAM_CONTEXT_FRAME upstream).
CONVOLUTION_FRAMES = 12
# Upstream's own state on the published checkpoints: their window, though 8 layers of it reach further.
MAX_STATE_FRAMES = 72


def state_frames(window_frames: int, layers: int) -> int:
    """Past frames that a chunk depends on, as far as upstream keeps any: at least the window."""
    reach = layers * (window_frames - 1) + CONVOLUTION_FRAMES
    return max(window_frames, min(reach, MAX_STATE_FRAMES))


def keep_whole_reach(decoder: Any) -> None:
    """Makes upstream's streaming decoder remember `state_frames`, not one layer's window.

    It reads the length of its memory from the same number as its transformer reads the window of its
    attention. With a window of 72 the two may be one; with 16 in four layers, every chunk after the
    first 16 frames would begin with a click.
    """
    config = copy.deepcopy(decoder.config)
    config.sliding_window = state_frames(int(config.sliding_window), int(config.num_hidden_layers))
    decoder.config = config


class Decoder(Qwen3TTSCode2Wav):
    """vLLM-Omni's Code2Wav; weights load by the same names."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        keep_whole_reach(self.decoder)
