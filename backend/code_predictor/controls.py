"""What one request asks of the code predictor, frame by frame."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.code_predictor.buffers import CONTROL_WORDS, FrameBuffers

# Below, drawing is greedy; vLLM's own limit (_SAMPLING_EPS in vllm/v1/sample/sampler.py). The inverse
# must stay far from infinity, which times a logit of 0 is not a number.
LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class Controls:
    """How to draw one frame's codes. Equal controls and inputs give equal codes, in any batch."""

    # From 0 to 2**63 - 1.
    seed: int = 0
    frame: int = 0
    # 0, and all below LEAST_TEMPERATURE, is greedy.
    temperature: float = 0.9
    # 0 keeps all codes.
    top_k: int = 50
    top_p: float = 1.0
    # Asked for; see `CodePredictor.predict` for when it is not granted.
    graph: bool = True

    @property
    def greedy(self) -> bool:
        return not self.temperature >= LEAST_TEMPERATURE


def write_controls(rows: list[Controls], buffers: FrameBuffers) -> None:
    """Fills the buffers' rows; a device gets them in one copy from pinned memory, without waiting.

    Rows beyond the last get what it has.
    """
    codes = buffers.logits.shape[-1]
    every = rows + rows[-1:] * (buffers.batch - len(rows))
    # As `split_controls` cuts them; numpy takes microseconds where tensors take a hundred.
    words = np.empty((CONTROL_WORDS, buffers.batch), np.int32)
    words[:2].reshape(-1).view(np.int64)[:] = [row.seed for row in every]
    words[2] = [row.frame for row in every]
    words[3].view(np.float32)[:] = [1.0 if row.greedy else 1.0 / row.temperature for row in every]
    words[4].view(np.float32)[:] = [not row.greedy for row in every]
    words[5] = [row.top_k if 0 < row.top_k <= codes else codes for row in every]
    packed = pinned(torch.from_numpy(words.reshape(-1)), buffers.controls.device)
    buffers.controls.copy_(packed, non_blocking=True)


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """`host` where `device` can copy it from while the host goes on."""
    return host.pin_memory() if device.type == "cuda" else host
