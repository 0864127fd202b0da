"""vLLM-Omni's codec with a checkpoint's weights, in float32 and without an engine."""

import importlib
from pathlib import Path
from typing import Any

from backend.plugins import make_discoverable

_PACKAGE = "vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz"


def load_decoder(checkpoint: Path) -> Any:
    """The decoder, as upstream has it."""
    config, modeling = _load(checkpoint)
    decoder = modeling.Qwen3TTSTokenizerV2Decoder._from_config(config.decoder_config).float().eval()
    decoder.load_state_dict(_weights(checkpoint, "decoder."))
    return decoder


def load_clip_encoder(checkpoint: Path) -> Any:
    """Our encoder, made and moved as the talker does it."""
    import torch

    from backend.clip_encoder import ClipEncoder

    config, modeling = _load(checkpoint)
    upstream = modeling.Qwen3TTSTokenizerV2Encoder._from_config(config.encoder_config).to(torch.bfloat16)
    encoder = ClipEncoder.of(upstream, torch.float32)
    encoder.load_state_dict(_weights(checkpoint, "encoder."))
    return encoder.to(device="cpu", dtype=torch.bfloat16)


def _load(checkpoint: Path) -> tuple[Any, Any]:
    make_discoverable()
    configuration = importlib.import_module(f"{_PACKAGE}.configuration_qwen3_tts_tokenizer_v2")
    modeling = importlib.import_module(f"{_PACKAGE}.modeling_qwen3_tts_tokenizer_v2")
    folder = str(checkpoint / "speech_tokenizer")
    return configuration.Qwen3TTSTokenizerV2Config.from_pretrained(folder), modeling


def _weights(checkpoint: Path, prefix: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    tensors = load_file(checkpoint / "speech_tokenizer" / "model.safetensors")
    return {k.removeprefix(prefix): v.float() for k, v in tensors.items() if k.startswith(prefix)}
