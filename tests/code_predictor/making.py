"""Random predictors and frames to put into them."""

from dataclasses import replace

import torch
from torch import Tensor

from backend.code_predictor import Controls, PredictorShape, PredictorWeights

SMALL = PredictorShape(
    hidden=48,
    mlp=80,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    groups=6,
    codes=256,
    talker_hidden=64,
    norm_eps=1e-6,
    rope_theta=1e6,
)
# As in the published 0.6B, where talker and predictor are equally wide and nothing is projected.
EQUALLY_WIDE = replace(SMALL, talker_hidden=48)


def published_tensors(shape: PredictorShape, seed: int) -> dict[str, Tensor]:
    """Random weights under their published names; bfloat16 holds every value exactly."""
    s, generator = shape, torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return gain * torch.randn(rows, columns, generator=generator) / columns**0.5

    def norm(width: int) -> Tensor:
        return 1 + 0.2 * torch.randn(width, generator=generator)

    tensors = {"model.norm.weight": norm(s.hidden)}
    for i in range(s.layers):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": norm(s.hidden),
            f"{layer}.post_attention_layernorm.weight": norm(s.hidden),
            f"{layer}.self_attn.q_proj.weight": matrix(s.heads * s.head_dim, s.hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(s.kv_heads * s.head_dim, s.hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(s.kv_heads * s.head_dim, s.hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(s.hidden, s.heads * s.head_dim),
            f"{layer}.self_attn.q_norm.weight": norm(s.head_dim),
            f"{layer}.self_attn.k_norm.weight": norm(s.head_dim),
            f"{layer}.mlp.gate_proj.weight": matrix(s.mlp, s.hidden),
            f"{layer}.mlp.up_proj.weight": matrix(s.mlp, s.hidden),
            f"{layer}.mlp.down_proj.weight": matrix(s.hidden, s.mlp),
        }
    for i in range(s.groups - 1):
        tensors[f"model.codec_embedding.{i}.weight"] = torch.randn(
            s.codes, s.talker_hidden, generator=generator
        )
        tensors[f"lm_head.{i}.weight"] = matrix(s.codes, s.hidden, gain=2.0)
    if s.projects:
        tensors["small_to_mtp_projection.weight"] = matrix(s.hidden, s.talker_hidden)
        tensors["small_to_mtp_projection.bias"] = 0.1 * torch.randn(s.hidden, generator=generator)
    return {name: tensor.bfloat16().float() for name, tensor in tensors.items()}


def random_weights(
    shape: PredictorShape, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> PredictorWeights:
    weights = PredictorWeights(shape, dtype).to(device)
    weights.load_weights(published_tensors(shape, seed).items())
    return weights


def random_frame(weights: PredictorWeights, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """code0, its embedding, the talker's hidden state and the text step: fresh in every call."""
    s = weights.shape
    wide = [torch.randn(batch, s.talker_hidden, device=weights.device).to(weights.dtype) for _ in range(3)]
    return torch.randint(s.codes, (batch,), device=weights.device), wide[0], wide[1], wide[2]


def sampled(batch: int, seed: int = 0, **values: float) -> list[Controls]:
    """A row each with a seed of its own."""
    return [Controls(seed=seed + i, frame=3, **values) for i in range(batch)]  # type: ignore[arg-type]
