"""The codec's encoder, which turns a reference clip into codes, as the reference package runs it.

vLLM-Omni's is the same network but for two things, each of which changes codes: it is kept in bfloat16
whatever the talker is in, and under transformers 5 its attention sees 250 steps (10 s) back, where under
the 4.57 of the reference package it sees the whole clip.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import (
    Qwen3TTSTokenizerV2Encoder,
)


class ClipEncoder(Qwen3TTSTokenizerV2Encoder):
    """Mimi's encoder in one precision for good; weights load by the same names."""

    @classmethod
    def of(cls, upstream: Qwen3TTSTokenizerV2Encoder, dtype: torch.dtype) -> "ClipEncoder":
        """One of `upstream`'s configuration, on its device; no weights are copied."""
        config = copy.deepcopy(upstream.config)
        config.sliding_window = config.max_position_embeddings
        made: ClipEncoder = cls._from_config(config).eval()
        torch.nn.Module.to(made, upstream.device, dtype)
        return made

    def to(self, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> "ClipEncoder":
        """Moves, but never converts: upstream asks for bfloat16 once the weights are loaded."""
        moved: ClipEncoder = super().to(*args, **kwargs)
        return moved

    @torch.inference_mode()
    def codes(
        self, clips: Sequence[NDArray[np.float32]], groups: int, samples_per_frame: int
    ) -> list[Tensor]:
        """Codes [frames, groups] of each clip [samples] at the codec's rate; a partial last frame counts.

        One after the other, so that a clip's codes do not depend on what is encoded beside it.
        """
        return [self._codes(clip, groups)[: -(-len(clip) // samples_per_frame)] for clip in clips]

    def _codes(self, clip: NDArray[np.float32], groups: int) -> Tensor:
        samples = torch.from_numpy(clip).to(self.device, self.dtype)
        encoded = self.encode(input_values=samples[None, None], return_dict=True).audio_codes
        codes: Tensor = encoded[0, :groups].T.long().contiguous()
        return codes
