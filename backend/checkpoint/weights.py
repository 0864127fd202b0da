"""Random weights that behave: lively logits, audible audio, voices that differ, speech that ends.

Each tensor is drawn from a generator of its own, seeded by (seed, name), so that a
checkpoint does not depend on the order of creation. CPU and CUDA generators differ:
the same seed gives other, equally good, weights there.
"""

import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from backend.checkpoint import networks
from backend.checkpoint.layout import codec_shapes, model_shapes
from backend.checkpoint.pace import set_pace

_LOGITS_STD = 3.0  # top-k 50 of 2048 at temperature 0.9 then holds many likely codes
_CODEC_EMBEDDING_STD = 0.5
_RESIDUAL_EMBEDDING_STD = 0.1
_X_VECTOR_STD = 0.5  # as loud as the codec row whose place it takes
_AUDIO_RMS = 0.1
_CALIBRATION_SAMPLES = 37 * 1920  # 2.96 s, 74 encoder steps
_CALIBRATION_VOICES = 8
_CALIBRATION_FRAMES = 24

Tensors = dict[str, Tensor]


def _generator(seed: int, name: str, device: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))


def _normal(shape: tuple[int, ...], std: float, seed: int, name: str, device: str) -> Tensor:
    return torch.randn(shape, generator=_generator(seed, name, device), device=device) * std


def _rounded(value: float) -> float:
    """To 3 digits, so that the last bits of a machine's arithmetic do not reach the weights."""
    return float(f"{value:.3g}")


@torch.no_grad()
def make_model_weights(config: dict[str, Any], seed: int, device: str) -> Tensors:
    """model.safetensors for a config.json: bfloat16 tensors on the CPU."""
    weights: Tensors = {}
    for name, shape in model_shapes(config).items():
        weights[name] = _init_model_tensor(name, shape, config, seed, device).to(torch.bfloat16).cpu()
    set_pace(weights, config)
    if "speaker_encoder_config" in config:
        _calibrate_speaker(weights, config["speaker_encoder_config"], seed, device)
    return weights


def _init_model_tensor(
    name: str, shape: tuple[int, ...], config: dict[str, Any], seed: int, device: str
) -> Tensor:
    if "norm" in name:
        return torch.ones(shape)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    talker = config["talker_config"]
    fan_in = math.prod(shape[1:])
    if name == "talker.model.text_embedding.weight":
        std = 1.0
    elif name == "talker.model.codec_embedding.weight":
        std = _CODEC_EMBEDDING_STD
    elif "codec_embedding" in name:
        std = _RESIDUAL_EMBEDDING_STD
    elif "codec_head" in name or "lm_head" in name:
        std = _LOGITS_STD / math.sqrt(fan_in)  # their input has an RMS of 1
    elif name.endswith(("o_proj.weight", "down_proj.weight")):
        stack = talker["code_predictor_config"] if "code_predictor" in name else talker
        # The residual stream grows by a fixed share whatever the depth (as in GPT-2).
        std = 1 / math.sqrt(fan_in * stack["num_hidden_layers"])
    elif name.startswith("speaker_encoder."):
        std = math.sqrt(2 / fan_in)  # keeps the variance through ReLU (arXiv 1502.01852)
    else:
        std = 1 / math.sqrt(fan_in)
    weight = _normal(shape, std, seed, name, device)
    if name == "speaker_encoder.blocks.0.conv.weight":
        # Blind to loudness: a log-mel's large constant part would drown what tells voices apart.
        weight -= weight.mean(dim=(1, 2), keepdim=True)
    return weight


def _calibrate_speaker(weights: Tensors, config: dict[str, Any], seed: int, device: str) -> None:
    """Centres the x-vectors of varied voices and scales them; the pace channels stay as they are."""
    speaker = {k: v.to(device, torch.float32) for k, v in weights.items() if k.startswith("speaker_encoder.")}
    mel = networks.log_mel(synthetic_voices(seed).to(device))
    vectors = networks.x_vector(speaker, config, mel)
    centre = vectors.mean(dim=0)
    gain = _rounded(_X_VECTOR_STD / (vectors - centre).std().item())
    bias = weights["speaker_encoder.fc.bias"].float()
    kept = bias != 0  # set by set_pace, whose rows of the weight are zero
    weights["speaker_encoder.fc.weight"] = (weights["speaker_encoder.fc.weight"].float() * gain).bfloat16()
    weights["speaker_encoder.fc.bias"] = torch.where(kept, bias, -centre.cpu() * gain).bfloat16()


@torch.no_grad()
def make_codec_weights(config: dict[str, Any], seed: int, device: str) -> Tensors:
    """speech_tokenizer/model.safetensors for its config.json: float32 tensors on the CPU."""
    weights = {
        name: _init_codec_tensor(name, shape, seed, device).to(device)
        for name, shape in codec_shapes(config).items()
    }
    _fill_code_books(weights, config["encoder_config"], seed, device)
    _level_decoder(weights, config["decoder_config"], seed, device)
    return {name: tensor.cpu() for name, tensor in weights.items()}


def _init_codec_tensor(name: str, shape: tuple[int, ...], seed: int, device: str) -> Tensor:
    if name.endswith((".cluster_usage", ".initialized")) or ("norm" in name and name.endswith(".weight")):
        return torch.ones(shape)
    if name.endswith((".bias", ".embed_sum")):
        return torch.zeros(shape)
    if name.endswith((".gamma", "_layer_scale.scale")):
        return torch.full(shape, 0.3)
    if name.endswith((".alpha", ".beta")):
        std = 0.1
    elif name.endswith(".embedding_sum"):
        std = 1.0 if "rvq_first" in name else 0.35
    elif ".upsample." in name and ".0.conv." in name:  # transposed, kernel = stride: one tap an output sample
        std = 1 / math.sqrt(shape[0])
    elif name.startswith("decoder.decoder.") and ".block.1.conv." in name:  # transposed, kernel = 2 strides
        std = 1 / math.sqrt(2 * shape[0])
    else:
        std = 1 / math.sqrt(math.prod(shape[1:]))
    return _normal(shape, std, seed, name, device)


def _fill_code_books(weights: Tensors, config: dict[str, Any], seed: int, device: str) -> None:
    """Draws each encoder code book from the residuals that reach it, so that codes vary."""
    latents = networks.encode_latents(weights, config, synthetic_voices(seed).to(device))
    semantic = config["num_semantic_quantizers"]
    for kind, count in (("semantic", semantic), ("acoustic", config["num_quantizers"] - semantic)):
        name = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        projected = torch.nn.functional.conv1d(latents, weights[f"{name}.input_proj.weight"])
        residual = projected.transpose(1, 2).reshape(-1, projected.shape[1])
        for i in range(count):
            book = f"{name}.layers.{i}.codebook.embed_sum"
            size = weights[book].shape[0]
            generator = _generator(seed, book, device)
            pick = torch.randint(len(residual), (size,), generator=generator, device=device)
            spread = torch.randn(weights[book].shape, generator=generator, device=device)
            # Fewer residuals than entries: half a deviation of noise tells the copies apart.
            weights[book] = residual[pick] + 0.5 * residual.std(dim=0) * spread
            residual = residual - weights[book][torch.cdist(residual, weights[book]).argmin(dim=-1)]


def _level_decoder(weights: Tensors, config: dict[str, Any], seed: int, device: str) -> None:
    """Scales the last convolution to the wanted RMS and takes the constant part away."""
    generator = _generator(seed, "calibration codes", device)
    shape = (4, config["num_quantizers"], _CALIBRATION_FRAMES)
    codes = torch.randint(config["codebook_size"], shape, generator=generator, device=device)
    audio = networks.decode_codes(weights, config, codes)
    gain = _rounded(_AUDIO_RMS / audio.std().item())
    last = f"decoder.decoder.{len(config['upsample_rates']) + 2}.conv"
    weights[f"{last}.weight"] *= gain
    weights[f"{last}.bias"] -= _rounded(audio.mean().item() * gain)


def synthetic_voices(seed: int) -> Tensor:
    """Voice-like signals [8, samples] at 24 kHz: gliding harmonics in syllables, with breath between.

    Every other one has nothing above 7.5 kHz, as recordings at 16 kHz have.
    """
    generator = _generator(seed, "calibration voices", "cpu")
    time_s = torch.arange(_CALIBRATION_SAMPLES) / 24000
    voices = []
    for i in range(_CALIBRATION_VOICES):
        depth, rate_hz, phase, tilt = torch.rand(4, generator=generator).tolist()
        pitch_hz = (
            80 * 1.2**i * (1 + 0.2 * depth * torch.sin(2 * math.pi * (0.4 + rate_hz) * time_s + 6 * phase))
        )
        cycle = 2 * math.pi * torch.cumsum(pitch_hz, 0) / 24000
        harmonics = torch.zeros_like(time_s)
        for k in range(1, 13):
            wobble = 0.5 + 0.5 * torch.sin(2 * math.pi * (0.9 + 0.13 * k) * time_s + k * i)
            harmonics += torch.sin(k * cycle) * k ** -(0.6 + tilt) * wobble
        syllable = (0.5 + 0.5 * torch.sin(2 * math.pi * (2 + rate_hz) * time_s + 6 * phase)).square()
        breath = torch.randn(time_s.shape, generator=generator)
        voice = 0.15 * harmonics * syllable + 0.03 * breath * (1 - syllable) + 0.001 * breath
        if i % 2:
            spectrum = torch.fft.rfft(voice)
            spectrum[int(len(spectrum) * 7500 / 12000) :] = 0
            voice = torch.fft.irfft(spectrum, len(voice))
        voices.append(voice)
    return torch.stack(voices)
