"""One frame, from the talker's hidden state to 15 residual codes and the talker's next input.

Position 0 holds the talker's hidden state, position 1 + g the code of group g; the output at position
g chooses the code of group g. The first two positions go through the layers together, every further
one alone, on a key and value cache of its own.

The arithmetic is in *stages*, which two modules provide: `plain` in PyTorch, and `kernels` in Triton.
"""

from typing import Protocol

from torch import Tensor

from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.weights import PredictorWeights


class Stages(Protocol):
    """Every stage writes its results into buffers; none allocates what outlives it, none synchronises."""

    def project(self, inputs: Tensor, weights: PredictorWeights, stream: Tensor) -> None:
        """stream = inputs at the predictor's width."""

    def norm_linear(self, stream: Tensor, norm: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
        """out [rows, n] = RMSNorm(stream [rows, hidden]) @ weight [n, hidden].T"""

    def attend(
        self, buffers: FrameBuffers, weights: PredictorWeights, layer: int, start: int, count: int
    ) -> None:
        """Norms and rotates `count` new positions from `start`, caches them, attends over all so far."""

    def linear_add(self, x: Tensor, weight: Tensor, stream: Tensor) -> None:
        """stream [rows, n] += x [rows, k] @ weight [n, k].T"""

    def gated_mlp(self, stream: Tensor, norm: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
        """out [rows, mlp] = SiLU(gate) * up, from RMSNorm(stream) @ [gate; up].T"""

    def draw(self, buffers: FrameBuffers, weights: PredictorWeights, group: int) -> None:
        """codes[:, group] from logits, and its embedding as the stream's first `batch` rows."""

    def finish(self, buffers: FrameBuffers, weights: PredictorWeights) -> None:
        """next_embeds = all code embeddings + text_step; a frame without a real code 0 becomes zeros."""


def predict_frame(stages: Stages, weights: PredictorWeights, buffers: FrameBuffers) -> None:
    shape, batch = weights.shape, buffers.batch
    stages.project(buffers.inputs, weights, buffers.stream)
    run_layers(stages, weights, buffers, start=0, count=2)
    newest = buffers.stream[batch:]
    for group in range(1, shape.groups):
        head = weights.heads[group - 1]
        stages.norm_linear(newest, weights.final_norm, head, buffers.logits, shape.norm_eps)
        stages.draw(buffers, weights, group)
        if group + 1 < shape.groups:
            run_layers(stages, weights, buffers, start=group + 1, count=1)
        newest = buffers.stream[:batch]
    stages.finish(buffers, weights)


def run_layers(
    stages: Stages, weights: PredictorWeights, buffers: FrameBuffers, start: int, count: int
) -> None:
    """Takes the stream's first `count * batch` rows, position by position, through all layers."""
    w, b, eps = weights, buffers, weights.shape.norm_eps
    rows = count * b.batch
    stream, qkv, attended, gated = b.stream[:rows], b.qkv[:rows], b.attended[:rows], b.gated[:rows]
    for layer in range(w.shape.layers):
        stages.norm_linear(stream, w.input_norm[layer], w.qkv[layer], qkv, eps)
        stages.attend(b, w, layer, start, count)
        stages.linear_add(attended, w.attention_out[layer], stream)
        stages.gated_mlp(stream, w.mlp_norm[layer], w.gate_up[layer], gated, eps)
        stages.linear_add(gated, w.mlp_out[layer], stream)
