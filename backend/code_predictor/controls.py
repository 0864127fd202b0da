"""What one request asks of the code predictor, frame by frame."""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.code_predictor.buffers import FrameBuffers

# Below, drawing is greedy; vLLM's own limit (_SAMPLING_EPS in vllm/v1/sample/sampler.py). The inverse
# must stay far from infinity, which times a logit of 0 is not a number.
LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class Controls:
    """How to draw one frame's codes. Equal controls and inputs give equal codes, in any batch."""

    # From 0 to 2**53 - 1: it travels as float64, which is exact up to there.
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
    """Fills the buffers' first rows; a device gets them in one copy from pinned memory, without waiting."""
    codes = buffers.logits.shape[-1]
    values = [
        (
            row.seed,
            row.frame,
            1.0 if row.greedy else 1.0 / row.temperature,
            float(not row.greedy),
            row.top_k if 0 < row.top_k <= codes else codes,
        )
        for row in rows
    ]
    # Said aloud: models are loaded with a GPU as the default device.
    packed = pinned(torch.tensor(values, dtype=torch.float64, device="cpu"), buffers.controls.device)
    buffers.controls[: len(rows)].copy_(packed, non_blocking=True)


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """`host` where `device` can copy it from while the host goes on."""
    return host.pin_memory() if device.type == "cuda" else host
