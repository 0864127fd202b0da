"""The codec and speaker networks as plain functions over a dict of tensors.

They exist to calibrate random weights at creation without importing vLLM or
transformers (20 s and more, at every first start). The architectures are those of
vllm_omni/model_executor/models/qwen3_tts (tokenizer_12hz and qwen3_tts_talker),
of Mimi (arXiv 2410.00037) and of ECAPA-TDNN (arXiv 2005.07143); the tests hold
each function to its upstream module. Inputs must be shorter than the attention
windows (72 frames in the decoder, 250 steps in the encoder), which are left out.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.checkpoint.layout import MEL_BANDS

Weights = Mapping[str, Tensor]

SPEAKER_DILATIONS = (1, 2, 3, 4, 1)
_SAMPLE_RATE_HZ = 24000
_FFT_SAMPLES = 1024
_HOP_SAMPLES = 256
_MEL_FLOOR = 1e-5


def _conv(
    x: Tensor, w: Weights, name: str, stride: int = 1, dilation: int = 1, pad_mode: str = "constant"
) -> Tensor:
    """A causal convolution; depthwise where the weight says so."""
    weight = w[f"{name}.weight"]
    pad = (weight.shape[-1] - 1) * dilation + 1 - stride
    # Upstream pads the end of a partial step; whole steps are all that is used here.
    x = F.pad(x, (pad, 0), mode=pad_mode)
    groups = x.shape[1] // weight.shape[1]
    return F.conv1d(x, weight, w.get(f"{name}.bias"), stride, 0, dilation, groups)


def _upsample(x: Tensor, w: Weights, name: str, stride: int) -> Tensor:
    return F.conv_transpose1d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride)[..., : x.shape[-1] * stride]


def _linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _attention(x: Tensor, w: Weights, name: str, heads: int, rope_theta: float) -> Tensor:
    """Causal multi-head self-attention with rotary positions; x [batch, steps, hidden]."""
    batch, steps, _ = x.shape
    q, k, v = (
        _linear(x, w, f"{name}.{part}_proj").view(batch, steps, heads, -1).transpose(1, 2)
        for part in ("q", "k", "v")
    )
    head_dim = q.shape[-1]
    inverse_period = rope_theta ** (-torch.arange(0, head_dim, 2, device=x.device) / head_dim)
    angle = torch.arange(steps, device=x.device)[:, None] * inverse_period.repeat(2)
    cos, sin = angle.cos(), angle.sin()

    def rotate(t: Tensor) -> Tensor:
        first, second = t.chunk(2, dim=-1)
        return t * cos + torch.cat((-second, first), dim=-1) * sin

    out = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    return _linear(out.transpose(1, 2).reshape(batch, steps, -1), w, f"{name}.o_proj")


def _layer_norm(x: Tensor, w: Weights, name: str, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def _rms_norm(x: Tensor, w: Weights, name: str, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], eps)


def _snake(x: Tensor, w: Weights, name: str) -> Tensor:
    """x + sin^2(alpha x) / beta, with both parameters stored as logarithms (arXiv 2006.08195)."""
    alpha, beta = w[f"{name}.alpha"].exp()[:, None], w[f"{name}.beta"].exp()[:, None]
    return x + (x * alpha).sin().square() / (beta + 1e-9)


def encode_latents(w: Weights, config: dict[str, Any], audio: Tensor) -> Tensor:
    """What the encoder quantizes: audio [batch, samples] at 24 kHz to [batch, hidden, frames].

    `samples` must be a multiple of 1920.
    """
    prefix, index = "encoder.encoder.layers", 1
    x = _conv(audio[:, None], w, f"{prefix}.0.conv")
    for ratio in reversed(config["upsampling_ratios"]):
        inner = _conv(F.elu(x), w, f"{prefix}.{index}.block.1.conv")
        x = x + _conv(F.elu(inner), w, f"{prefix}.{index}.block.3.conv")
        x = _conv(F.elu(x), w, f"{prefix}.{index + 2}.conv", stride=ratio)
        index += 3
    x = _conv(F.elu(x), w, f"{prefix}.{index + 1}.conv").transpose(1, 2)
    for i in range(config["num_hidden_layers"]):
        layer, eps = f"encoder.encoder_transformer.layers.{i}", config["norm_eps"]
        y = _layer_norm(x, w, f"{layer}.input_layernorm", eps)
        y = _attention(y, w, f"{layer}.self_attn", config["num_attention_heads"], config["rope_theta"])
        x = x + y * w[f"{layer}.self_attn_layer_scale.scale"]
        y = _linear(_layer_norm(x, w, f"{layer}.post_attention_layernorm", eps), w, f"{layer}.mlp.fc1")
        x = x + _linear(F.gelu(y), w, f"{layer}.mlp.fc2") * w[f"{layer}.mlp_layer_scale.scale"]
    return _conv(x.transpose(1, 2), w, "encoder.downsample.conv", stride=2, pad_mode="replicate")


def decode_codes(w: Weights, config: dict[str, Any], codes: Tensor) -> Tensor:
    """Codes [batch, 16, frames] to audio [batch, frames * 1920] at 24 kHz, before clamping to [-1, 1]."""
    semantic = config["num_semantic_quantizers"]
    x = torch.zeros((), device=codes.device)
    for kind, rows in (("first", codes[:, :semantic]), ("rest", codes[:, semantic:])):
        name = f"decoder.quantizer.rvq_{kind}"
        total = torch.zeros((), device=codes.device)
        for i in range(rows.shape[1]):
            book = f"{name}.vq.layers.{i}._codebook"
            usage = w[f"{book}.cluster_usage"].clamp(min=1e-5)[:, None]
            total = total + F.embedding(rows[:, i], w[f"{book}.embedding_sum"] / usage)
        x = x + F.conv1d(total.transpose(1, 2), w[f"{name}.output_proj.weight"])
    x = _conv(x, w, "decoder.pre_conv.conv").transpose(1, 2)
    x = _linear(x, w, "decoder.pre_transformer.input_proj")
    for i in range(config["num_hidden_layers"]):
        layer, eps = f"decoder.pre_transformer.layers.{i}", config["rms_norm_eps"]
        y = _rms_norm(x, w, f"{layer}.input_layernorm", eps)
        y = _attention(y, w, f"{layer}.self_attn", config["num_attention_heads"], config["rope_theta"])
        x = x + y * w[f"{layer}.self_attn_layer_scale.scale"]
        y = _rms_norm(x, w, f"{layer}.post_attention_layernorm", eps)
        gate, up = _linear(y, w, f"{layer}.mlp.gate_proj"), _linear(y, w, f"{layer}.mlp.up_proj")
        y = _linear(F.silu(gate) * up, w, f"{layer}.mlp.down_proj")
        x = x + y * w[f"{layer}.mlp_layer_scale.scale"]
    x = _rms_norm(x, w, "decoder.pre_transformer.norm", config["rms_norm_eps"])
    x = _linear(x, w, "decoder.pre_transformer.output_proj").transpose(1, 2)
    for i, ratio in enumerate(config["upsampling_ratios"]):
        block = f"decoder.upsample.{i}.1"
        x = _upsample(x, w, f"decoder.upsample.{i}.0.conv", ratio)
        y = _layer_norm(_conv(x, w, f"{block}.dwconv.conv").transpose(1, 2), w, f"{block}.norm", 1e-6)
        y = _linear(F.gelu(_linear(y, w, f"{block}.pwconv1")), w, f"{block}.pwconv2")
        x = x + (y * w[f"{block}.gamma"]).transpose(1, 2)
    x = _conv(x, w, "decoder.decoder.0.conv")
    for i, ratio in enumerate(config["upsample_rates"], start=1):
        block = f"decoder.decoder.{i}.block"
        x = _upsample(_snake(x, w, f"{block}.0"), w, f"{block}.1.conv", ratio)
        for j, dilation in ((2, 1), (3, 3), (4, 9)):
            y = _conv(_snake(x, w, f"{block}.{j}.act1"), w, f"{block}.{j}.conv1.conv", dilation=dilation)
            x = x + _conv(_snake(y, w, f"{block}.{j}.act2"), w, f"{block}.{j}.conv2.conv")
    last = len(config["upsample_rates"]) + 1
    return _conv(_snake(x, w, f"decoder.decoder.{last}"), w, f"decoder.decoder.{last + 1}.conv")[:, 0]


def log_mel(audio: Tensor) -> Tensor:
    """Audio [batch, samples] at 24 kHz to log-mel [batch, 128, samples // 256], natural log.

    Triangles on the HTK scale; upstream's are on Slaney's. The levels are alike,
    which is all that calibration needs.
    """
    bins = torch.linspace(0, _SAMPLE_RATE_HZ / 2, _FFT_SAMPLES // 2 + 1)
    top_mel = 2595 * math.log10(1 + _SAMPLE_RATE_HZ / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top_mel, MEL_BANDS + 2) / 2595) - 1)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    area = 2 / (edges[2:] - edges[:-2])
    triangles = torch.minimum(rise, fall).clamp(min=0) * area[:, None]
    pad = (_FFT_SAMPLES - _HOP_SAMPLES) // 2
    audio = F.pad(audio[:, None], (pad, pad), mode="reflect")[:, 0]
    window = torch.hann_window(_FFT_SAMPLES, device=audio.device)
    spectrum = torch.stft(
        audio, _FFT_SAMPLES, _HOP_SAMPLES, window=window, center=False, return_complex=True
    ).abs()
    return (triangles.to(audio.device) @ spectrum).clamp(min=_MEL_FLOOR).log()


def _tdnn(x: Tensor, w: Weights, name: str, dilation: int = 1) -> Tensor:
    weight = w[f"{name}.conv.weight"]
    pad = dilation * (weight.shape[-1] - 1) // 2
    return F.conv1d(
        F.pad(x, (pad, pad), mode="reflect"), weight, w[f"{name}.conv.bias"], dilation=dilation
    ).relu()


def _pointwise(x: Tensor, w: Weights, name: str) -> Tensor:
    return F.conv1d(x, w[f"{name}.weight"], w[f"{name}.bias"])


def pooled_voice(w: Weights, config: dict[str, Any], mel: Tensor) -> Tensor:
    """Attentive statistics of log-mel [batch, 128, frames]: [batch, 2 * channels, 1]."""
    x = _tdnn(mel, w, "speaker_encoder.blocks.0", SPEAKER_DILATIONS[0])
    levels = []
    for i in range(1, len(config["enc_channels"]) - 1):
        name, residual = f"speaker_encoder.blocks.{i}", x
        parts = list(_tdnn(x, w, f"{name}.tdnn1").chunk(config["enc_res2net_scale"], dim=1))
        for j in range(1, len(parts)):
            carried = parts[j] if j == 1 else parts[j] + parts[j - 1]
            parts[j] = _tdnn(carried, w, f"{name}.res2net_block.blocks.{j - 1}", SPEAKER_DILATIONS[i])
        x = _tdnn(torch.cat(parts, dim=1), w, f"{name}.tdnn2")
        squeezed = _pointwise(x.mean(-1, keepdim=True), w, f"{name}.se_block.conv1").relu()
        x = x * _pointwise(squeezed, w, f"{name}.se_block.conv2").sigmoid() + residual
        levels.append(x)
    x = _tdnn(torch.cat(levels, dim=1), w, "speaker_encoder.mfa")
    mean, std = _statistics(x, torch.full_like(x, 1 / x.shape[-1]))
    context = torch.cat((x, mean.expand_as(x), std.expand_as(x)), dim=1)
    attention = _pointwise(
        _tdnn(context, w, "speaker_encoder.asp.tdnn").tanh(), w, "speaker_encoder.asp.conv"
    )
    return torch.cat(_statistics(x, attention.softmax(dim=-1)), dim=1)


def _statistics(x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    mean = (share * x).sum(-1, keepdim=True)
    return mean, (share * (x - mean).square()).sum(-1, keepdim=True).clamp(min=1e-12).sqrt()


def x_vector(w: Weights, config: dict[str, Any], mel: Tensor) -> Tensor:
    """A voice as [batch, enc_dim], from log-mel [batch, 128, frames]."""
    return _pointwise(pooled_voice(w, config, mel), w, "speaker_encoder.fc")[..., 0]
