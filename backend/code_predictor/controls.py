"""What one request asks of the code predictor, frame by frame."""

from dataclasses import dataclass
from typing import Any

import torch

from backend.code_predictor.buffers import FrameBuffers


@dataclass(frozen=True)
class Controls:
    """How to draw one frame's codes. Equal controls and inputs give equal codes, in any batch."""

    seed: int = 0
    frame: int = 0
    # 0 is greedy.
    temperature: float = 0.9
    # 0 keeps all codes.
    top_k: int = 50
    top_p: float = 1.0
    # Asked for; see `CodePredictor.predict` for when it is not granted.
    graph: bool = True


def write_controls(rows: list[Controls], buffers: FrameBuffers) -> None:
    """Fills the buffers' control rows; a device gets them from pinned memory, without waiting."""
    codes = buffers.logits.shape[-1]
    # As 32-bit words: the seed takes two.
    packed: list[list[Any]] = [
        [row.seed & 0xFFFFFFFF, row.seed >> 32, row.frame, row.top_k if 0 < row.top_k <= codes else codes]
        for row in rows
    ]
    greedy = [row.temperature <= 0 for row in rows]
    scales = [
        [1.0 if zero else 1.0 / row.temperature, 0.0 if zero else 1.0]
        for row, zero in zip(rows, greedy, strict=True)
    ]
    device, count = buffers.seed.device, len(rows)
    whole = _to(torch.tensor(packed, dtype=torch.long), device)
    buffers.seed[:count] = whole[:, 0] | (whole[:, 1] << 32)
    buffers.frame[:count] = whole[:, 2]
    buffers.top_k[:count] = whole[:, 3]
    parts = _to(torch.tensor(scales, dtype=torch.float32), device)
    buffers.inverse_temperature[:count] = parts[:, 0]
    buffers.noise[:count] = parts[:, 1]


def _to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
