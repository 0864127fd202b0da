"""What one request asks of the code predictor, frame by frame."""

from dataclasses import dataclass

import torch

from backend.code_predictor.buffers import FrameBuffers


@dataclass(frozen=True)
class Controls:
    """How to draw one frame's codes. Equal controls and inputs give equal codes, in any batch."""

    # From 0 to 2**53 - 1: it travels as float64, which is exact up to there.
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
    """Fills the buffers' first rows; a device gets them in one copy from pinned memory, without waiting."""
    codes = buffers.logits.shape[-1]
    values = [
        (
            row.seed,
            row.frame,
            1.0 / row.temperature if row.temperature > 0 else 1.0,
            float(row.temperature > 0),
            row.top_k if 0 < row.top_k <= codes else codes,
        )
        for row in rows
    ]
    packed = torch.tensor(values, dtype=torch.float64, device="cpu")
    if buffers.controls.is_cuda:
        packed = packed.pin_memory()
    buffers.controls[: len(rows)].copy_(packed, non_blocking=True)
