"""vLLM-Omni's own code predictor, made to hold the weights of one of ours."""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_code_predictor_vllm import (
    Qwen3TTSTalkerCodePredictorForConditionalGenerationVLLM,
)

from backend.code_predictor import PredictorWeights


def upstream_predictor(weights: PredictorWeights) -> Any:
    """A module to call as upstream's talker calls it; same device and dtype."""
    s, vllm_config = weights.shape, VllmConfig()
    config = SimpleNamespace(
        hidden_size=s.hidden,
        intermediate_size=s.mlp,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim,
        num_code_groups=s.groups,
        vocab_size=s.codes,
        rms_norm_eps=s.norm_eps,
        rope_theta=s.rope_theta,
        attention_bias=False,
    )
    with set_current_vllm_config(vllm_config), torch.device(weights.device):
        predictor = Qwen3TTSTalkerCodePredictorForConditionalGenerationVLLM(
            vllm_config=vllm_config,
            config=config,
            talker_config=SimpleNamespace(hidden_size=s.talker_hidden),
        ).to(weights.dtype)
    predictor.load_weights(_published(weights))
    return predictor


def _published(weights: PredictorWeights) -> list[tuple[str, torch.Tensor]]:
    """Our parameters under the checkpoint's names."""
    return [(name, weights._target(name)) for name in weights._published_names()]
