"""vLLM-Omni's codec with a checkpoint's weights, in float32 and without an engine."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backend.plugins import make_discoverable
from tests.reference.captures import Capture

_PACKAGE = "vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz"


def load_decoder(checkpoint: Path) -> Any:
    """The decoder, as upstream has it."""
    config, modeling = _load(checkpoint)
    decoder = modeling.Qwen3TTSTokenizerV2Decoder._from_config(config.decoder_config).float().eval()
    decoder.load_state_dict(_weights(checkpoint, "decoder."))
    return decoder


def load_clip_encoder(checkpoint: Path) -> Any:
    """Our encoder, made and moved as the talker does it."""
    from backend.clip_encoder import ClipEncoder

    config, modeling = _load(checkpoint)
    upstream = modeling.Qwen3TTSTokenizerV2Encoder._from_config(config.encoder_config).to(torch.bfloat16)
    encoder = ClipEncoder.of(upstream, torch.float32)
    encoder.load_state_dict(_weights(checkpoint, "encoder."))
    return encoder.to(device="cpu", dtype=torch.bfloat16)


@contextmanager
def one_thread() -> Iterator[None]:
    """As in the engine's processes and where captures were made: bits depend on how work is divided."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def decode(decoder: Any, codes: NDArray[np.int64]) -> NDArray[np.float32]:
    """[samples] of codes [frames, 16], all at once."""
    made = decoder.chunked_decode(torch.from_numpy(codes.T.copy())[None])
    samples: NDArray[np.float32] = made[0, 0].clamp(-1, 1).numpy()
    return samples


def waveform(decoder: Any, made: Capture) -> NDArray[np.float32]:
    """As the reference package makes it: behind the clip's codes, if there are any, which are cut off."""
    if not made.case["in_context"]:
        return decode(decoder, made.codes)
    clip = made.arrays["clip_codes"].astype(np.int64)
    both = decode(decoder, np.concatenate([clip, made.codes]))
    # Its own arithmetic, in floats: a sample of the clip can be left over.
    return both[int(len(clip) / (len(clip) + len(made.codes)) * len(both)) :]


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
