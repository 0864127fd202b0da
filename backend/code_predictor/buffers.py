"""The static memory of one frame: what goes in, what comes out, and everything in between."""

import torch
from torch import Tensor

from backend.code_predictor.weights import PredictorWeights


class FrameBuffers:
    """Buffers for frames of `batch` requests; a captured graph reads and writes exactly these.

    In: inputs [2 * batch, talker_hidden], first every row's talker hidden state, then every row's
    embedding of code 0; text_step [batch, talker_hidden]; codes[:, 0]; and what to draw with, `controls`
    [batch, 5], one float64 column each: seed, frame, inverse_temperature (1 where greedy), noise (0 where
    greedy, else 1), top_k. One tensor, so that it takes one copy; `unpack` fills the five of their own.
    Out: codes [batch, groups] and next_embeds [batch, talker_hidden].
    """

    def __init__(self, weights: PredictorWeights, batch: int) -> None:
        s, device, dtype = weights.shape, weights.device, weights.dtype
        self.batch = batch

        def zeros(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self.inputs = zeros(2 * batch, s.talker_hidden)
        self.text_step = zeros(batch, s.talker_hidden)
        self.controls = zeros(batch, 5, dtype=torch.float64)
        self.controls[:, 2] = 1
        self.controls[:, 4] = s.codes
        self.seed = zeros(batch, dtype=torch.long)
        self.frame = zeros(batch, dtype=torch.int32)
        self.inverse_temperature = zeros(batch, dtype=torch.float32)
        self.noise = zeros(batch, dtype=torch.float32)
        self.top_k = zeros(batch, dtype=torch.int32)
        self.codes = zeros(batch, s.groups, dtype=torch.long)
        self.next_embeds = zeros(batch, s.talker_hidden)
        # The residual stream stays in float32: it is small, and every layer adds to it.
        self.stream = zeros(2 * batch, s.hidden, dtype=torch.float32)
        self.qkv = zeros(2 * batch, s.qkv_rows)
        self.attended = zeros(2 * batch, s.heads * s.head_dim)
        self.gated = zeros(2 * batch, s.mlp)
        self.logits = zeros(batch, s.codes, dtype=torch.float32)
        cache = (s.layers, batch, s.kv_heads, s.positions, s.head_dim)
        self.keys, self.values = zeros(*cache), zeros(*cache)

    def unpack(self) -> None:
        columns = (self.seed, self.frame, self.inverse_temperature, self.noise, self.top_k)
        for column, values in zip(columns, self.controls.unbind(1), strict=True):
            column.copy_(values)

    def poison(self) -> None:
        """Makes everything a frame must compute unusable, so that a test sees what was not written."""
        for tensor in (self.next_embeds, self.stream, self.qkv, self.attended, self.gated, self.logits):
            tensor.fill_(float("nan"))
        self.keys.fill_(float("nan"))
        self.values.fill_(float("nan"))
        self.codes[:, 1:] = -1
