"""The code predictor with a KV cache, for the CPU.

For every codec frame the predictor speaks 15 residual codes, one after the other.
Upstream runs all 17 positions again for each (no cache to manage, and on a GPU the
launches cost more than the arithmetic); on a CPU the arithmetic counts, so here each
step computes its one new position. Same weights, same distribution: codes are drawn
by Gumbel-max as upstream draws them, but only among the top-k that can win.
Upstream: vllm_omni/model_executor/models/common/qwen3_code_predictor.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

Generators = Sequence[torch.Generator | None] | None

# Keeps log(-log(u)) finite.
_UNIFORM_MARGIN = 1e-6


class CachedCodePredictor:
    """Stands in for the `forward` of upstream's `CodePredictorWrapper`, on that module's own weights.

    Positions: 0 is the talker's hidden state, 1 the frame's first code, 1 + i its residual code i;
    the output at position i chooses residual code i.
    """

    def __init__(self, predictor: Any) -> None:
        self._predictor = predictor
        config = predictor.config
        self._groups = int(config.num_code_groups)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        rotary = predictor.model.rotary_emb
        self._layers = [
            _Layer(layer, self._heads, self._kv_heads, rotary.cos_cached, rotary.sin_cached)
            for layer in predictor.model.layers
        ]
        self._norm = predictor.model.norm
        # Each residual code's embedding as the layers take it, projected once: [codes, hidden].
        project = predictor.small_to_mtp_projection
        with torch.inference_mode():
            self._embeddings = [project(table.weight) for table in predictor.model.codec_embedding]

    @torch.inference_mode()
    def __call__(
        self,
        layer0_code: torch.Tensor,
        layer0_embed: torch.Tensor,
        last_talker_hidden: torch.Tensor,
        do_sample: bool = True,
        temperature: float = 0.9,
        top_k: int = 50,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        generators: Generators = None,
        sample_uniforms: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """All codes of a frame, [batch, groups], the given first one included. Arguments as upstream's."""
        batch = layer0_code.shape[0]
        predictor = self._predictor
        samples = do_sample and temperature > 0
        if samples and top_p != 1.0:
            raise NotImplementedError("The code predictor samples with top_k only; set top_p to 1.")
        project = predictor.small_to_mtp_projection
        codes = torch.empty(batch, self._groups, dtype=torch.long)
        codes[:, 0] = layer0_code.reshape(batch)
        rows = generators if generators is not None else [generator] * batch
        for layer in self._layers:
            layer.begin(batch)
        self._step(project(last_talker_hidden.reshape(batch, -1)), 0)
        hidden = self._step(project(layer0_embed.reshape(batch, -1)), 1)
        for group in range(1, self._groups):
            logits = predictor.lm_head[group - 1](_rms_norm(hidden, self._norm))
            if samples:
                noise = None if sample_uniforms is None else sample_uniforms[:, group - 1]
                code = sample_top_k(logits / temperature, top_k, rows, noise)
            else:
                code = logits.argmax(dim=-1)
            codes[:, group] = code
            if group + 1 < self._groups:
                hidden = self._step(self._embeddings[group - 1][code], group + 1)
        return codes

    def _step(self, hidden: torch.Tensor, position: int) -> torch.Tensor:
        for layer in self._layers:
            hidden = layer.step(hidden, position)
        return hidden


class _Layer:
    """One decoder layer, a position at a time; hidden states are [batch, hidden]."""

    def __init__(self, layer: Any, heads: int, kv_heads: int, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._layer = layer
        attention = layer.self_attn
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, attention.head_dim
        self._eps = attention.q_norm.variance_epsilon
        half = self._head_dim // 2
        # Query and key heads are normalised and rotated together. Rotating x by an angle is
        # x * cos + swapped(x) * sin, with the first half of the sine negative; the norm's weight
        # is folded into both tables: [positions, heads, head_dim].
        weight = torch.cat(
            [
                attention.q_norm.weight.expand(heads, -1) * attention.scaling,
                attention.k_norm.weight.expand(kv_heads, -1),
            ]
        ).float()
        signed_sin = torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)
        self._cos = cos[:, None, :] * weight
        self._sin = signed_sin[:, None, :] * weight.roll(half, -1)
        self._ones = torch.ones(self._head_dim)
        self._positions = cos.shape[0]
        self._keys = self._values = torch.empty(0)

    def begin(self, batch: int) -> None:
        """Makes room for a frame of `batch` requests; old contents are never read again."""
        if self._keys.shape[0] != batch:
            shape = (batch, self._kv_heads, self._positions, self._head_dim)
            self._keys, self._values = torch.empty(shape), torch.empty(shape)

    def step(self, hidden: torch.Tensor, position: int) -> torch.Tensor:
        layer, batch = self._layer, hidden.shape[0]
        qkv = layer.self_attn.qkv_proj(_rms_norm(hidden, layer.input_layernorm))
        qkv = qkv.view(batch, self._heads + 2 * self._kv_heads, self._head_dim)
        rotated, value = qkv[:, : self._heads + self._kv_heads], qkv[:, self._heads + self._kv_heads :]
        rotated = rotated.reshape(-1, self._head_dim)
        normed = torch.empty_like(rotated)
        torch.ops._C.rms_norm(normed, rotated, self._ones, self._eps)
        rotated = normed.view(batch, -1, self._head_dim)
        swapped = rotated.roll(self._head_dim // 2, -1)
        rotated = torch.addcmul(rotated * self._cos[position], swapped, self._sin[position])
        self._keys[:, :, position] = rotated[:, self._heads :]
        self._values[:, :, position] = value
        query = rotated[:, : self._heads].reshape(batch, self._kv_heads, -1, self._head_dim)
        scores = query @ self._keys[:, :, : position + 1].transpose(-1, -2)
        mixed = scores.softmax(-1) @ self._values[:, :, : position + 1]
        hidden = hidden + layer.self_attn.o_proj(mixed.reshape(batch, -1))
        gate, up = layer.mlp.gate_up_proj(_rms_norm(hidden, layer.post_attention_layernorm)).chunk(2, -1)
        return hidden + layer.mlp.down_proj(F.silu(gate) * up)


def sample_top_k(
    logits: torch.Tensor, top_k: int, rows: Sequence[torch.Generator | None], uniforms: torch.Tensor | None
) -> torch.Tensor:
    """One code a row, [batch], from the softmax over the `top_k` largest of `logits`, [batch, codes].

    Gumbel-max: the argmax of logits - log(-log(u)), u uniform, is a draw from their softmax.
    `uniforms`, [batch, codes], takes the place of fresh random numbers from each row's generator.
    """
    best, code = logits.topk(top_k if top_k > 0 else logits.shape[-1], dim=-1)
    if uniforms is None:
        chance = torch.empty_like(best)
        for row, generator in enumerate(rows):
            chance[row].uniform_(_UNIFORM_MARGIN, 1.0 - _UNIFORM_MARGIN, generator=generator)
    else:
        chance = uniforms.gather(-1, code)
    winner = (best - torch.log(-torch.log(chance))).argmax(dim=-1, keepdim=True)
    return code.gather(-1, winner).reshape(-1)


def _rms_norm(hidden: torch.Tensor, norm: Any) -> torch.Tensor:
    # PyTorch composes this of seven kernels on a CPU; vLLM has it as one.
    normed = torch.empty_like(hidden)
    torch.ops._C.rms_norm(normed, hidden, norm.weight, norm.variance_epsilon)
    return normed
