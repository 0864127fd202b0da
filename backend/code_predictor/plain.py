"""The stages in plain PyTorch: the maths to read, and the twin every kernel is tested against.

Sums and norms are in float32 whatever the weights are in; what a kernel would write to memory in
the weights' dtype is rounded to it here too.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.noise import gumbel
from backend.code_predictor.weights import PredictorWeights


def project(inputs: Tensor, weights: PredictorWeights, stream: Tensor) -> None:
    if weights.projection is None:
        stream.copy_(inputs)
    else:
        stream.copy_(F.linear(inputs, weights.projection, weights.projection_bias))


def norm_linear(stream: Tensor, norm: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
    out.copy_(_linear(rms_norm(stream, norm, eps), weight))


def attend(buffers: FrameBuffers, weights: PredictorWeights, layer: int, start: int, count: int) -> None:
    s, batch, end = weights.shape, buffers.batch, start + count
    # Rows are position by position: [count, batch, all heads, head_dim].
    qkv = buffers.qkv[: count * batch].view(count, batch, -1, s.head_dim).float()
    query, key, value = qkv.split([s.heads, s.kv_heads, s.kv_heads], dim=2)
    cos, sin = (table[start:end, None, None] for table in (weights.prepared.cos, weights.prepared.sin))
    query = _rotate(rms_norm(query, weights.q_norm[layer], s.norm_eps), cos, sin)
    key = _rotate(rms_norm(key, weights.k_norm[layer], s.norm_eps), cos, sin)
    buffers.keys[layer, :, :, start:end] = key.permute(1, 2, 0, 3).to(buffers.keys.dtype)
    buffers.values[layer, :, :, start:end] = value.permute(1, 2, 0, 3).to(buffers.values.dtype)
    keys, values = (cache[layer, :, :, :end].float() for cache in (buffers.keys, buffers.values))
    # Query heads of one group share a key: [batch, kv_heads, heads / kv_heads * count, head_dim].
    query = query.view(count, batch, s.kv_heads, -1, s.head_dim).permute(1, 2, 3, 0, 4)
    scores = query @ keys[:, :, None].transpose(-1, -2) * s.head_dim**-0.5
    seen = torch.arange(end, device=scores.device) <= torch.arange(start, end, device=scores.device)[:, None]
    mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values[:, :, None]
    rows = mixed.permute(3, 0, 1, 2, 4).reshape(count * batch, -1)
    buffers.attended[: count * batch] = rows.to(buffers.attended.dtype)


def linear_add(x: Tensor, weight: Tensor, stream: Tensor) -> None:
    stream += _linear(x, weight)


def gated_mlp(stream: Tensor, norm: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
    gate, up = _linear(rms_norm(stream, norm, eps), weight).chunk(2, dim=-1)
    out.copy_(F.silu(gate) * up)


def draw(buffers: FrameBuffers, weights: PredictorWeights, group: int, top_p: float = 1.0) -> None:
    b = buffers
    chosen = choose(b.logits, group, b.seed, b.frame, b.inverse_temperature, b.noise, b.top_k, top_p)
    b.codes[:, group] = chosen
    b.stream[: b.batch] = weights.prepared.tables[group - 1][chosen].float()


class WithTopP:
    """The same stages, drawing only among the likeliest codes whose probabilities sum up to `top_p`."""

    project, norm_linear, attend = staticmethod(project), staticmethod(norm_linear), staticmethod(attend)
    linear_add, gated_mlp = staticmethod(linear_add), staticmethod(gated_mlp)

    def __init__(self, top_p: float) -> None:
        self._top_p = top_p

    def draw(self, buffers: FrameBuffers, weights: PredictorWeights, group: int) -> None:
        draw(buffers, weights, group, self._top_p)

    def finish(self, buffers: FrameBuffers, weights: PredictorWeights) -> None:
        finish(buffers, weights)


def choose(
    logits: Tensor,
    group: int,
    seed: Tensor,
    frame: Tensor,
    inverse_temperature: Tensor,
    noise: Tensor,
    top_k: Tensor,
    top_p: float = 1.0,
) -> Tensor:
    """One code a row, [batch], drawn from the softmax over each row's `top_k` largest logits.

    Gumbel-max: the argmax of logits / temperature + Gumbel noise is such a draw. Logits equal to the
    k-th largest are all kept. `noise` is 0 where the largest logit wins, `top_k` at least 1.
    `top_p` below 1 keeps, of those, the likeliest codes whose probabilities sum up to it.
    """
    descending = logits.sort(dim=-1, descending=True).values
    last = (top_k.long().clamp(max=logits.shape[-1]) - 1)[:, None]
    least = descending.gather(-1, last)
    if top_p < 1.0:
        kept = (descending * inverse_temperature[:, None]).masked_fill(descending < least, float("-inf"))
        chance = kept.softmax(-1)
        # The likeliest code always stays; the others while what is likelier sums up to less than top_p.
        beyond = chance.cumsum(-1) - chance >= top_p
        least = torch.maximum(least, descending.masked_fill(beyond, float("inf")).amin(-1, keepdim=True))
    dropped = logits < least
    scaled = logits * inverse_temperature[:, None]
    noisy = scaled + noise[:, None] * gumbel(seed, frame, group, logits.shape[-1])
    return noisy.masked_fill(dropped, float("-inf")).argmax(dim=-1)


def finish(buffers: FrameBuffers, weights: PredictorWeights) -> None:
    b, s = buffers, weights.shape
    real = (b.codes[:, :1] >= 0) & (b.codes[:, :1] < s.codes)
    b.codes.mul_(real)
    groups = torch.arange(s.groups - 1, device=b.codes.device)
    residual = weights.embeddings[groups, b.codes[:, 1:]].float().sum(dim=1)
    b.next_embeds.copy_(b.inputs[b.batch :].float() + residual + b.text_step.float())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, k] rounded to the weight's dtype, times weight [n, k].T, summed up in float32: [rows, n].

    Without the float32 result a CPU would round it to the weight's dtype before it can be added.
    """
    return F.linear(x.to(weight.dtype).float(), weight.float())


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., head_dim] by angles [..., head_dim / 2]: halves turn together."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
