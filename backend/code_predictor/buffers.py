"""The static memory of one frame: what goes in, what comes out, and everything in between."""

import torch
from torch import Tensor

from backend.code_predictor.weights import PredictorWeights

# Of 32 bits, for each row.
CONTROL_WORDS = 6


class FrameBuffers:
    """Buffers for frames of `batch` requests; a captured graph reads and writes exactly these.

    In: inputs [2 * batch, talker_hidden], first every row's talker hidden state, then every row's
    embedding of code 0; text_step [batch, talker_hidden]; codes[:, 0]; and what to draw with, each
    [batch]: seed, frame, inverse_temperature (1 where greedy), noise (0 where greedy, else 1), top_k.
    Those five are parts of `controls`, so that one copy fills them all.
    Out: codes [batch, groups] and next_embeds [batch, talker_hidden].
    """

    def __init__(self, weights: PredictorWeights, batch: int) -> None:
        s, device, dtype = weights.shape, weights.device, weights.dtype
        self.batch = batch

        def zeros(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self.inputs = zeros(2 * batch, s.talker_hidden)
        self.text_step = zeros(batch, s.talker_hidden)
        self.controls = zeros(CONTROL_WORDS * batch, dtype=torch.int32)
        self.seed, self.frame, self.inverse_temperature, self.noise, self.top_k = split_controls(
            self.controls
        )
        self.inverse_temperature.fill_(1)
        self.top_k.fill_(s.codes)
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

    def poison(self) -> None:
        """Makes everything a frame must compute unusable, so that a test sees what was not written."""
        for tensor in (self.next_embeds, self.stream, self.qkv, self.attended, self.gated, self.logits):
            tensor.fill_(float("nan"))
        self.keys.fill_(float("nan"))
        self.values.fill_(float("nan"))
        self.codes[:, 1:] = -1


def split_controls(words: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Views of `words`, int32 [CONTROL_WORDS * batch]: seed int64, frame int32, inverse_temperature and
    noise float32, top_k int32, each [batch].
    """
    batch = len(words) // CONTROL_WORDS
    seed, frame, inverse_temperature, noise, top_k = words.split([2 * batch, *[batch] * 4])
    return (
        seed.view(torch.int64),
        frame,
        inverse_temperature.view(torch.float32),
        noise.view(torch.float32),
        top_k,
    )
