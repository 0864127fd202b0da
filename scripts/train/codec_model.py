"""The Qwen3-TTS 12 Hz codec at trainable widths, in plain PyTorch.

The module tree carries the names of the published checkpoint; only the code books are kept
otherwise (stacked, once, see `codec_quantizer`), and `export_codec` writes them out twice.
Encoder: Mimi (arXiv 2410.00037). Decoder: causal transformer over frames, then a convolutional
generator with SnakeBeta activations (arXiv 2206.04658).
"""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train.codec_quantizer import ResidualVQ
from scripts.train.snake import Snake

HOP_SAMPLES, SAMPLE_RATE_HZ, GROUPS, CODES = 1920, 24000, 16, 2048

# Decoder: 4 layers of window 16 see 60 frames back, the convolutions under 12: within the 72 frames
# of left context that streaming gives it, so chunks decode exactly.
# Encoder: the published window of 250 steps (10 s); transformers 4 ignores it, transformers 5 does not,
# so clips within 10 s are what both encode alike.
SIZES: dict[str, int] = {
    "enc_filters": 24,
    "enc_hidden": 256,
    "enc_inter": 768,
    "enc_layers": 3,
    "enc_heads": 4,
    "enc_head_dim": 64,
    "enc_window": 250,
    "cb_dim": 64,
    "dec_latent": 256,
    "dec_hidden": 192,
    "dec_inter": 512,
    "dec_layers": 4,
    "dec_heads": 3,
    "dec_head_dim": 64,
    "dec_dim": 256,
    "dec_window": 16,
}


class CausalConv(nn.Module):
    def __init__(
        self,
        cin: int,
        cout: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        pad_mode: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, kernel, stride, dilation=dilation, groups=groups, bias=bias)
        self.pad, self.pad_mode = (kernel - 1) * dilation + 1 - stride, pad_mode

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.pad, 0), mode=self.pad_mode) if self.pad else x)


class CausalUpsample(nn.Module):
    def __init__(self, cin: int, cout: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(cin, cout, kernel, stride)
        self.trim = kernel - stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y[..., : y.shape[-1] - self.trim]


class ResBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(), CausalConv(dim, dim // 2, 3), nn.ELU(), CausalConv(dim // 2, dim, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(dim, heads * head_dim, bias=False) for _ in range(3)
        )
        self.o_proj = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (
            p(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )

        def rotate(a: Tensor) -> Tensor:
            first, second = a.chunk(2, -1)
            return (a * cos + torch.cat([-second, first], -1) * sin).to(a.dtype)

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class GeluMLP(nn.Module):
    def __init__(self, dim: int, inter: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, inter, bias=False), nn.Linear(inter, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class SwiGLU(nn.Module):
    def __init__(self, dim: int, inter: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(dim, inter, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inter, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, attention: Attention, mlp: nn.Module, norms: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, mlp
        self.input_layernorm, self.post_attention_layernorm = norms
        dim = attention.o_proj.out_features
        self.self_attn_layer_scale, self.mlp_layer_scale = LayerScale(dim), LayerScale(dim)

    def forward(self, x: Tensor, *rotation_and_mask: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), *rotation_and_mask))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


def run_layers(layers: nn.ModuleList, x: Tensor, window: int) -> Tensor:
    """Causal transformer layers over x (B, T, D), each position seeing `window` positions."""
    head_dim = layers[0].self_attn.head_dim
    at = torch.arange(x.shape[1], device=x.device)
    back = at[:, None] - at[None]
    inverse_period = 10000.0 ** (-torch.arange(0, head_dim, 2, device=x.device).float() / head_dim)
    angle = torch.cat([at[:, None].float() * inverse_period] * 2, -1)
    cos, sin, mask = angle.cos(), angle.sin(), (back >= 0) & (back < window)
    for layer in layers:
        x = layer(x, cos, sin, mask)
    return x


class ResUnit(nn.Module):
    def __init__(self, dim: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.conv1 = Snake(dim), CausalConv(dim, dim, 7, dilation=dilation)
        self.act2, self.conv2 = Snake(dim), CausalConv(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class UpBlock(nn.Module):
    def __init__(self, cin: int, cout: int, rate: int) -> None:
        super().__init__()
        units = (ResUnit(cout, dilation) for dilation in (1, 3, 9))
        self.block = nn.Sequential(Snake(cin), CausalUpsample(cin, cout, 2 * rate, rate), *units)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class ConvNeXt(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv, self.norm = CausalConv(dim, dim, 7, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))).transpose(1, 2)


class Place(nn.Module):
    """A named place in the module tree."""


class Encoder(nn.Module):
    def __init__(self, s: dict[str, int], depth: int) -> None:
        super().__init__()
        width, hidden = s["enc_filters"], s["enc_hidden"]
        layers: list[nn.Module] = [CausalConv(1, width, 7)]
        for rate in (4, 5, 6, 8):
            layers += [ResBlock(width), nn.ELU(), CausalConv(width, 2 * width, 2 * rate, stride=rate)]
            width *= 2
        layers += [nn.ELU(), CausalConv(width, hidden, 3)]
        self.encoder, self.encoder_transformer = Place(), Place()
        self.encoder.layers = nn.ModuleList(layers)
        self.encoder_transformer.layers = nn.ModuleList(
            Layer(
                Attention(hidden, s["enc_heads"], s["enc_head_dim"]),
                GeluMLP(hidden, s["enc_inter"]),
                (nn.LayerNorm(hidden), nn.LayerNorm(hidden)),
            )
            for _ in range(s["enc_layers"])
        )
        self.downsample = CausalConv(hidden, hidden, 4, stride=2, bias=False, pad_mode="replicate")
        self.quantizer = Place()
        # vLLM masks code 0 of group 0, so training must not use it.
        self.quantizer.semantic = ResidualVQ(hidden, s["cb_dim"], levels=1, codes=CODES, reserved=1)
        self.quantizer.acoustic = ResidualVQ(hidden, s["cb_dim"], levels=depth - 1, codes=CODES)
        self.window = s["enc_window"]

    def forward(self, wav: Tensor) -> Tensor:
        """wav (B, 1, T * 1920) -> latents (B, hidden, T)."""
        h = wav
        for m in self.encoder.layers:
            h = m(h)
        h = run_layers(self.encoder_transformer.layers, h.transpose(1, 2), self.window)
        return self.downsample(h.transpose(1, 2))


class Decoder(nn.Module):
    def __init__(self, s: dict[str, int]) -> None:
        super().__init__()
        latent, hidden, codebook = s["dec_latent"], s["dec_hidden"], s["cb_dim"]
        self.quantizer = Place()
        for name in ("rvq_first", "rvq_rest"):
            place = Place()
            place.output_proj = nn.Conv1d(codebook, 2 * codebook, 1, bias=False)
            setattr(self.quantizer, name, place)
        self.pre_conv = CausalConv(2 * codebook, latent, 3)
        p = self.pre_transformer = Place()
        p.input_proj, p.output_proj = nn.Linear(latent, hidden), nn.Linear(hidden, latent)
        p.layers = nn.ModuleList(
            Layer(
                Attention(hidden, s["dec_heads"], s["dec_head_dim"]),
                SwiGLU(hidden, s["dec_inter"]),
                (RMSNorm(hidden), RMSNorm(hidden)),
            )
            for _ in range(s["dec_layers"])
        )
        p.norm = RMSNorm(hidden)
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalUpsample(latent, latent, 2, 2), ConvNeXt(latent)]) for _ in range(2)
        )
        width = s["dec_dim"]
        blocks: list[nn.Module] = [CausalConv(latent, width, 7)]
        for rate in (8, 5, 4, 3):
            blocks.append(UpBlock(width, width // 2, rate))
            width //= 2
        self.decoder = nn.ModuleList([*blocks, Snake(width), CausalConv(width, 1, 7)])
        self.window = s["dec_window"]

    def frames(self, first: Tensor, rest: Tensor) -> Tensor:
        """Quantized vectors (B, D, T) of both quantizers -> features (B, latent, T), one a frame."""
        h = self.quantizer.rvq_first.output_proj(first) + self.quantizer.rvq_rest.output_proj(rest)
        p = self.pre_transformer
        h = run_layers(p.layers, p.input_proj(self.pre_conv(h).transpose(1, 2)), self.window)
        return p.output_proj(p.norm(h)).transpose(1, 2)

    def waveform(self, h: Tensor) -> Tensor:
        """Frame features (B, latent, T) -> audio (B, 1, T * 1920), not clamped."""
        for up, block in self.upsample:
            h = block(up(h))
        for m in self.decoder[:-1]:
            h = m(h)
        # In bf16 the samples would carry rounding noise 50 dB below the speech.
        with torch.autocast(h.device.type, enabled=False):
            return self.decoder[-1](h.float())


class Codec(nn.Module):
    def __init__(self, sizes: dict[str, int] | None = None, depth: int = GROUPS) -> None:
        super().__init__()
        self.sizes, self.depth = SIZES | (sizes or {}), depth
        self.encoder, self.decoder = Encoder(self.sizes, depth), Decoder(self.sizes)
        self.apply(init_weights)

    @property
    def quantizers(self) -> tuple[ResidualVQ, ResidualVQ]:
        return self.encoder.quantizer.semantic, self.encoder.quantizer.acoustic

    def quantize(
        self, h: Tensor, keep: Tensor | None = None, revive: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Latents (B, hidden, T) -> vectors of group 0 and of the others (B, D, T), codes (B, depth, T),
        commitment loss. keep (B,): acoustic levels each item uses. With `revive` (a bool tensor: replace
        dead codes now) the code books follow what they catch. Everything in float32.
        """
        first, rest = self.quantizers
        with torch.autocast(h.device.type, enabled=False):
            h = h.float()
            a, a_codes, a_commit = first(first.input_proj(h), None, revive)
            b, b_codes, b_commit = rest(rest.input_proj(h), keep, revive)
        return a, b, torch.cat([a_codes, b_codes], 1), a_commit + b_commit

    @torch.no_grad()
    def encode(self, wav: Tensor) -> Tensor:
        """wav (B, 1, T * 1920) -> codes (B, 16, T), 0 in the groups beyond `depth`."""
        codes = self.quantize(self.encoder(wav))[2]
        return F.pad(codes, (0, 0, 0, GROUPS - self.depth))

    @torch.no_grad()
    def decode(self, codes: Tensor, groups: int = GROUPS) -> Tensor:
        """codes (B, 16, T) -> audio (B, 1, T * 1920), from the first `groups` groups alone."""
        first, rest = self.quantizers
        groups = min(groups, self.depth)
        return self.decoder.waveform(
            self.decoder.frames(first.lookup(codes[:, :1]), rest.lookup(codes[:, 1:groups]))
        )


def init_weights(m: nn.Module) -> None:
    """Called on children before their parents."""
    if isinstance(m, nn.Conv1d | nn.ConvTranspose1d | nn.Linear):
        fan = m.weight[0].numel()
        if isinstance(m, nn.ConvTranspose1d):
            fan = m.weight.shape[0] * m.weight.shape[2] / m.stride[0]
        nn.init.normal_(m.weight, std=0.7 / math.sqrt(fan))
        if m.bias is not None:
            nn.init.zeros_(m.bias)
    elif isinstance(m, ResUnit):  # near the identity
        m.conv2.conv.weight.data.mul_(0.3)
    elif isinstance(m, Encoder):  # ELU shrinks; and silence must not be exactly zero for the LayerNorms
        for c in m.encoder.modules():
            if isinstance(c, nn.Conv1d):
                c.weight.data.mul_(1.5)
                nn.init.normal_(c.bias, std=0.03)
    elif isinstance(m, Decoder):  # start quiet
        m.decoder[-1].conv.weight.data.mul_(0.05)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A codec.pt, or the folder that holds it whole or in pieces codec.pt.0, codec.pt.1, ..."""
    path = Path(path)
    if path.is_dir():
        whole, pieces = path / "codec.pt", sorted(path.glob("codec.pt.*"), key=lambda p: int(p.suffix[1:]))
        if whole.exists() or not pieces:
            path = whole
        else:
            import io

            return torch.load(io.BytesIO(b"".join(p.read_bytes() for p in pieces)), map_location="cpu")
    return torch.load(path, map_location="cpu")


def load_codec(path: str | Path) -> Codec:
    """The codec of a checkpoint, in float32 on the CPU."""
    blob = read_checkpoint(path)
    codec = Codec(blob["sizes"], blob["depth"])
    codec.load_state_dict({k: v.float() for k, v in blob["model"].items()})
    return codec.eval()
