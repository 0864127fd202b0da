"""Running a frame on given codes, to see the logits behind each."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.frame import predict_frame
from backend.code_predictor.weights import PredictorWeights


class Forced:
    """Stages that note logits and go on with the codes they are told."""

    def __init__(self, stages: ModuleType, codes: Tensor) -> None:
        self._stages = stages
        self._codes = codes
        self.logits: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stages, name)

    def draw(self, buffers: FrameBuffers, weights: PredictorWeights, group: int) -> None:
        self.logits.append(buffers.logits.clone())
        buffers.codes[:, group] = self._codes[:, group]
        buffers.stream[: buffers.batch] = weights.prepared.tables[group - 1][self._codes[:, group]].float()


def forced_logits(
    stages: ModuleType, weights: PredictorWeights, inputs: Tensor, codes: Tensor
) -> tuple[Tensor, FrameBuffers]:
    """Logits [batch, groups - 1, codes] on poisoned buffers; inputs [2 * batch, talker_hidden]."""
    buffers = FrameBuffers(weights, len(codes))
    buffers.poison()
    buffers.inputs.copy_(inputs)
    buffers.codes[:, 0] = codes[:, 0]
    forced = Forced(stages, codes)
    with torch.inference_mode():
        predict_frame(forced, weights, buffers)
    return torch.stack(forced.logits, dim=1), buffers
