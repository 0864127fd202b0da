"""The code predictor once more, written from the published architecture alone: no cache, no batch, float64.

A Qwen3 decoder (RMSNorm, grouped-query attention with normed and rotated queries and keys, SiLU-gated
MLP) that is run over the whole sequence for every code. Takes the checkpoint's own tensors.
"""

import math

import torch
from torch import Tensor

from backend.code_predictor import PredictorShape

Tensors = dict[str, Tensor]


def logits_of(tensors: Tensors, shape: PredictorShape, inputs: list[Tensor]) -> list[Tensor]:
    """Logits of every residual group, given all of a frame's inputs at the talker's width: teacher forcing.

    `inputs`: the talker's hidden state, then the embeddings of code 0 and of each residual code but the last.
    """
    w = {name: tensor.double() for name, tensor in tensors.items()}
    x = torch.stack(inputs).double()
    if "small_to_mtp_projection.weight" in w:
        x = x @ w["small_to_mtp_projection.weight"].T + w["small_to_mtp_projection.bias"]
    for i in range(shape.layers):
        x = _layer(w, f"model.layers.{i}", shape, x)
    x = _norm(x, w["model.norm.weight"], shape.norm_eps)
    return [x[group] @ w[f"lm_head.{group - 1}.weight"].T for group in range(1, len(inputs))]


def greedy_codes(tensors: Tensors, shape: PredictorShape, hidden: Tensor, code0_embed: Tensor) -> list[int]:
    """The residual codes of one frame, each the likeliest after those before it."""
    inputs, codes = [hidden, code0_embed], []
    for group in range(1, shape.groups):
        code = int(logits_of(tensors, shape, inputs)[-1].argmax())
        codes.append(code)
        inputs.append(tensors[f"model.codec_embedding.{group - 1}.weight"][code])
    return codes


def _layer(w: Tensors, name: str, shape: PredictorShape, x: Tensor) -> Tensor:
    length, dim = len(x), shape.head_dim
    h = _norm(x, w[f"{name}.input_layernorm.weight"], shape.norm_eps)
    q, k, v = ((h @ w[f"{name}.self_attn.{part}_proj.weight"].T).reshape(length, -1, dim) for part in "qkv")
    q = _turned(_norm(q, w[f"{name}.self_attn.q_norm.weight"], shape.norm_eps), shape)
    k = _turned(_norm(k, w[f"{name}.self_attn.k_norm.weight"], shape.norm_eps), shape)
    mixed = torch.zeros(length, shape.heads, dim, dtype=torch.float64)
    for head in range(shape.heads):
        kv = head * shape.kv_heads // shape.heads
        for t in range(length):
            chance = (k[: t + 1, kv] @ q[t, head] / math.sqrt(dim)).softmax(0)
            mixed[t, head] = chance @ v[: t + 1, kv]
    x = x + mixed.reshape(length, -1) @ w[f"{name}.self_attn.o_proj.weight"].T
    h = _norm(x, w[f"{name}.post_attention_layernorm.weight"], shape.norm_eps)
    gate, up = h @ w[f"{name}.mlp.gate_proj.weight"].T, h @ w[f"{name}.mlp.up_proj.weight"].T
    return x + (gate * gate.sigmoid() * up) @ w[f"{name}.mlp.down_proj.weight"].T


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _turned(x: Tensor, shape: PredictorShape) -> Tensor:
    """Each pair (i, i + dim / 2) as a complex number, turned by position * theta^(-2 i / dim)."""
    half = shape.head_dim // 2
    speeds = shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * speeds
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)
