"""The talker, the code predictor and the speaker encoder of Qwen3-TTS, small and trainable.

Parameters have the published names, so that a state dict is `model.safetensors` but for
the precision. The architecture is that of qwen-tts 0.1.1
(core/models/modeling_qwen3_tts.py); its three rotary axes carry the same positions for
speech, which makes its multimodal rotation the plain one. `tests/train` holds this module
to the published ones.

A channel of the predictor's hidden state is constant by construction (`freeze_constant`):
the code books that the codec leaves unused (`depth` and above) are then chosen to be code 0
by the heads alone, without training them.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.checkpoint.configs import CODE_GROUPS, CODEC_ROWS, CODES_PER_GROUP
from backend.checkpoint.layout import MEL_BANDS, SPEAKER_KERNELS
from backend.checkpoint.networks import SPEAKER_DILATIONS
from backend.checkpoint.sizes import SpeakerEncoderSize, Stack

EPS = 1e-6
ROPE_THETA = 1_000_000.0
CHANNEL = 0
# In the reserved channel, after the projection or, where there is none, in every embedding: there the
# talker hears 16 of them in a frame. Exact in bf16.
PROJECTED_CONSTANT, EMBEDDED_CONSTANT = 0.5, 0.125


@dataclass(frozen=True)
class TalkerSizes:
    """Widths of everything in model.safetensors, and how many code books the codec uses."""

    talker: Stack
    predictor: Stack
    speaker: SpeakerEncoderSize = field(
        default_factory=lambda: SpeakerEncoderSize((128, 128, 128, 128, 384), 64, 4, 64)
    )
    text_vocab: int = 2048
    text_hidden: int = 256
    depth: int = CODE_GROUPS


def talker_sizes(
    hidden: int = 256,
    layers: int = 6,
    mlp: int | None = None,
    predictor_hidden: int = 256,
    predictor_layers: int = 2,
    depth: int = CODE_GROUPS,
    text_vocab: int = 2048,
    speaker_channels: int = 128,
) -> TalkerSizes:
    """Sizes by their main numbers: heads of 64, two query heads to a key, a wide MLP."""
    return TalkerSizes(
        talker=_stack(hidden, layers, mlp or 128 * math.ceil(hidden * 3 / 128)),
        predictor=_stack(predictor_hidden, predictor_layers, 128 * math.ceil(predictor_hidden * 3 / 128)),
        speaker=SpeakerEncoderSize((*[speaker_channels] * 4, 3 * speaker_channels), 64, 4, 64),
        text_vocab=text_vocab,
        text_hidden=min(hidden, 256),
        depth=depth,
    )


def _stack(hidden: int, layers: int, mlp: int) -> Stack:
    heads = max(2, 2 * round(hidden / 128))
    return Stack(hidden, mlp, layers, heads, kv_heads=heads // 2, head_dim=64)


class _LookUp(torch.autograd.Function):
    """`table[ids]`; the gradient is a product with one-hot rows: no sorting, no contended atomics."""

    @staticmethod
    def forward(ctx, table: Tensor, ids: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(ids)
        ctx.rows, ctx.dtype = table.shape[0], table.dtype
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (ids,) = ctx.saved_tensors
        flat, ids = grad.reshape(-1, grad.shape[-1]), ids.reshape(-1)
        if grad.is_cuda:
            with torch.autocast("cuda", enabled=False):
                one_hot = torch.zeros(len(ids), ctx.rows, dtype=torch.bfloat16, device=grad.device)
                one_hot.scatter_(1, ids[:, None], 1.0)
                total = one_hot.t() @ flat.to(torch.bfloat16)
        else:
            total = torch.zeros(ctx.rows, flat.shape[1]).index_add_(0, ids, flat.float())
        return total.to(ctx.dtype), None


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of `table` [rows, width] for `ids` [...]: [..., width]."""
    return _LookUp.apply(table, ids)  # type: ignore[no-any-return]


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, EPS)


@dataclass
class Cache:
    """Keys and values of one stack [layers, batch, kv_heads, positions, head_dim]; `length` are in use."""

    keys: Tensor
    values: Tensor
    length: int = 0


class Attention(nn.Module):
    def __init__(self, size: Stack) -> None:
        super().__init__()
        query, key = size.heads * size.head_dim, size.kv_heads * size.head_dim
        self.size = size
        self.q_proj = nn.Linear(size.hidden, query, bias=False)
        self.k_proj = nn.Linear(size.hidden, key, bias=False)
        self.v_proj = nn.Linear(size.hidden, key, bias=False)
        self.o_proj = nn.Linear(query, size.hidden, bias=False)
        self.q_norm = RMSNorm(size.head_dim)
        self.k_norm = RMSNorm(size.head_dim)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: Cache | None, layer: int
    ) -> Tensor:
        size = self.size
        batch, steps, _ = x.shape
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        heads = F.linear(x, weight).view(batch, steps, -1, size.head_dim)
        rotated_heads = size.heads + size.kv_heads
        qk, v = heads[:, :, :rotated_heads].float(), heads[:, :, rotated_heads:]
        qk = qk * torch.rsqrt(qk.square().mean(-1, keepdim=True) + EPS)
        # Norm weight and rotation in one: x w cos + swap(x w) sin, with the sine's first half negative.
        scale = torch.cat(
            (
                self.q_norm.weight.expand(size.heads, -1),
                self.k_norm.weight.expand(size.kv_heads, -1),
            )
        )
        half = size.head_dim // 2
        qk = qk * (cos[:, None] * scale) + qk.roll(half, -1) * (sin[:, None] * scale.roll(half, -1))
        qk = qk.to(v.dtype)
        q, k, v = (t.transpose(1, 2) for t in (qk[:, :, : size.heads], qk[:, :, size.heads :], v))
        if cache is not None:
            end = cache.length + steps
            cache.keys[layer, :, :, cache.length : end] = k
            cache.values[layer, :, :, cache.length : end] = v
            k, v = cache.keys[layer, :, :, :end], cache.values[layer, :, :, :end]
        groups = size.heads // size.kv_heads
        k, v = (
            t[:, :, None].expand(-1, -1, groups, -1, -1).reshape(batch, size.heads, t.shape[2], -1)
            for t in (k, v)
        )
        causal = mask is None and steps > 1
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.o_proj(out.transpose(1, 2).reshape(batch, steps, -1))


class GatedMLP(nn.Module):
    def __init__(self, size: Stack) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.mlp, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.mlp, bias=False)
        self.down_proj = nn.Linear(size.mlp, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, size: Stack) -> None:
        super().__init__()
        self.self_attn = Attention(size)
        self.mlp = GatedMLP(size)
        self.input_layernorm = RMSNorm(size.hidden)
        self.post_attention_layernorm = RMSNorm(size.hidden)


class Qwen3Stack(nn.Module):
    """Decoder layers and the last norm."""

    def __init__(self, size: Stack, dropout: float) -> None:
        super().__init__()
        self.size = size
        self.dropout = dropout
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)

    def run(self, x: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """x [batch, steps, hidden] to the normed hidden state; causal unless a `mask` of keys is given.

        With a cache, x holds the steps after those in it, and `mask` is [batch, 1, steps, positions].
        """
        start = cache.length if cache is not None else 0
        cos, sin = _rotation(self.size.head_dim, start, start + x.shape[1], x.device)
        for i, layer in enumerate(self.layers):
            y = layer.self_attn(layer.input_layernorm(x), cos, sin, mask, cache, i)
            x = x + F.dropout(y, self.dropout, self.training)
            y = layer.mlp(layer.post_attention_layernorm(x))
            x = x + F.dropout(y, self.dropout, self.training)
        if cache is not None:
            cache.length += x.shape[1]
        return self.norm(x)

    def new_cache(self, batch: int, positions: int, device: torch.device, dtype: torch.dtype) -> Cache:
        size = self.size
        shape = (size.layers, batch, size.kv_heads, positions, size.head_dim)
        return Cache(*(torch.zeros(shape, device=device, dtype=dtype) for _ in range(2)))


def _rotation(head_dim: int, start: int, end: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine [end - start, head_dim] for rotations of the two halves against each other."""
    period = ROPE_THETA ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.arange(start, end, device=device, dtype=torch.float32)[:, None] * period
    return angle.cos().repeat(1, 2), torch.cat((-angle.sin(), angle.sin()), dim=-1)


class CodePredictor(nn.Module):
    """Residual codes of a frame, one group after another, from the talker's hidden state."""

    def __init__(self, size: Stack, talker_hidden: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.depth = depth
        self.model = Qwen3Stack(size, dropout)
        self.model.codec_embedding = nn.ModuleList(
            nn.Embedding(CODES_PER_GROUP, talker_hidden) for _ in range(CODE_GROUPS - 1)
        )
        self.lm_head = nn.ModuleList(
            nn.Linear(size.hidden, CODES_PER_GROUP, bias=False) for _ in range(CODE_GROUPS - 1)
        )
        if size.hidden != talker_hidden:
            self.small_to_mtp_projection = nn.Linear(talker_hidden, size.hidden)

    def project(self, x: Tensor) -> Tensor:
        return self.small_to_mtp_projection(x) if hasattr(self, "small_to_mtp_projection") else x

    def embed(self, group: int, codes: Tensor) -> Tensor:
        """Embedding of residual codes [...] of group 1 to 15, as wide as the talker."""
        return look_up(self.model.codec_embedding[group - 1].weight, codes)

    def states(self, hidden: Tensor, first_embedding: Tensor, codes: Tensor, groups: int) -> Tensor:
        """Normed states [frames, groups - 1, width] that choose groups 1 to `groups` - 1, teacher-forced.

        `hidden` [frames, talker_hidden] is the talker's last normed state, `first_embedding` that of
        each frame's group 0 (of the talker's table), `codes` [frames, 16].
        """
        steps = [hidden.float(), first_embedding.float()]
        steps += [self.embed(g, codes[:, g]).float() for g in range(1, groups - 1)]
        return self.model.run(self.project(torch.stack(steps, dim=1)))[:, 1:]

    def logits(self, hidden: Tensor, first_embedding: Tensor, codes: Tensor) -> Tensor:
        """Logits [depth - 1, frames, 2048] of the code books in use; arguments as for `states`."""
        states = self.states(hidden, first_embedding, codes, self.depth)
        heads = torch.stack([self.lm_head[g].weight for g in range(self.depth - 1)])
        return torch.matmul(states.transpose(0, 1), heads.transpose(1, 2))


class TextProjection(nn.Module):
    def __init__(self, text_hidden: int, hidden: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_hidden, text_hidden)
        self.linear_fc2 = nn.Linear(text_hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


class Talker(nn.Module):
    def __init__(self, sizes: TalkerSizes, dropout: float) -> None:
        super().__init__()
        hidden = sizes.talker.hidden
        self.model = Qwen3Stack(sizes.talker, dropout)
        self.model.codec_embedding = nn.Embedding(CODEC_ROWS, hidden)
        self.model.text_embedding = nn.Embedding(sizes.text_vocab, sizes.text_hidden)
        self.text_projection = TextProjection(sizes.text_hidden, hidden)
        self.codec_head = nn.Linear(hidden, CODEC_ROWS, bias=False)
        self.code_predictor = CodePredictor(sizes.predictor, hidden, sizes.depth, dropout)

    def text_rows(self) -> Tensor:
        """What each text token adds to a row: [text_vocab, hidden]."""
        return self.text_projection(self.model.text_embedding.weight)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Frames [..., 16] as the talker hears them: the sum of their 16 embeddings, [..., hidden]."""
        total = look_up(self.model.codec_embedding.weight, codes[..., 0])
        for group in range(1, self.code_predictor.depth):
            total = total + self.code_predictor.embed(group, codes[..., group])
        return total + self.unused_rows()

    def unused_rows(self) -> Tensor:
        """What the code books the codec leaves unused add to every frame."""
        unused = self.code_predictor.model.codec_embedding[self.code_predictor.depth - 1 :]
        rows = [table.weight[0].detach() for table in unused]
        return torch.stack(rows).sum(0) if rows else torch.zeros((), device=self.codec_head.weight.device)


class Convolution(nn.Module):
    """A convolution of the same length, reflecting at the ends, and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, dilation=dilation)
        self.pad = dilation * (kernel - 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        if self.pad:
            x = F.pad(x, (self.pad, self.pad), mode="reflect")
        return self.conv(x).relu()


class Res2Net(nn.Module):
    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        part = channels // scale
        self.scale = scale
        self.blocks = nn.ModuleList(Convolution(part, part, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(x.chunk(self.scale, dim=1))
        for i, block in enumerate(self.blocks, start=1):
            parts[i] = block(parts[i] if i == 1 else parts[i] + parts[i - 1])
        return torch.cat(parts, dim=1)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, squeeze, 1)
        self.conv2 = nn.Conv1d(squeeze, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.conv2(self.conv1(x.mean(-1, keepdim=True)).relu()).sigmoid()


class SpeakerBlock(nn.Module):
    def __init__(self, channels: int, size: SpeakerEncoderSize, kernel: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = Convolution(channels, channels, 1, 1)
        self.res2net_block = Res2Net(channels, size.res2net_scale, kernel, dilation)
        self.tdnn2 = Convolution(channels, channels, 1, 1)
        self.se_block = SqueezeExcitation(channels, size.squeeze)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


class AttentiveStatistics(nn.Module):
    def __init__(self, channels: int, attention: int) -> None:
        super().__init__()
        self.tdnn = Convolution(3 * channels, attention, 1, 1)
        self.conv = nn.Conv1d(attention, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = _statistics(x, torch.full_like(x, 1 / x.shape[-1]))
        context = torch.cat((x, mean.expand_as(x), std.expand_as(x)), dim=1)
        share = self.conv(self.tdnn(context).tanh()).float().softmax(dim=-1)
        return torch.cat(_statistics(x, share), dim=1)


def _statistics(x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    x = x.float()
    mean = (share * x).sum(-1, keepdim=True)
    return mean, (share * (x - mean).square()).sum(-1, keepdim=True).clamp(min=1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    """ECAPA-TDNN (arXiv 2005.07143): log-mel [batch, 128, steps] to x-vectors [batch, hidden]."""

    def __init__(self, size: SpeakerEncoderSize, out_width: int) -> None:
        super().__init__()
        channels = size.channels
        blocks: list[nn.Module] = [Convolution(MEL_BANDS, channels[0], SPEAKER_KERNELS[0], 1)]
        for i in range(1, len(channels) - 1):
            blocks.append(SpeakerBlock(channels[i], size, SPEAKER_KERNELS[i], SPEAKER_DILATIONS[i]))
        self.blocks = nn.ModuleList(blocks)
        self.mfa = Convolution(channels[-1], channels[-1], SPEAKER_KERNELS[-1], 1)
        self.asp = AttentiveStatistics(channels[-1], size.attention)
        self.fc = nn.Conv1d(2 * channels[-1], out_width, 1)

    def forward(self, mel: Tensor) -> Tensor:
        levels = [self.blocks[0](mel)]
        for block in self.blocks[1:]:
            levels.append(block(levels[-1]))
        return self.fc(self.asp(self.mfa(torch.cat(levels[1:], dim=1))))[..., 0]


def mel_filters() -> Tensor:
    """Triangles [128, 513] from 0 to 12 kHz, Slaney's scale and area, as librosa's and torchaudio's."""

    def to_mel(hz: Tensor) -> Tensor:
        log = 15 + (hz.clamp(min=1000) / 1000).log() / (math.log(6.4) / 27)
        return torch.where(hz < 1000, hz * 3 / 200, log)

    def to_hz(mel: Tensor) -> Tensor:
        return torch.where(mel < 15, mel * 200 / 3, 1000 * ((mel - 15) * (math.log(6.4) / 27)).exp())

    ends = to_mel(torch.tensor([0.0, 12_000.0], dtype=torch.float64))
    edges = to_hz(torch.linspace(ends[0].item(), ends[1].item(), MEL_BANDS + 2, dtype=torch.float64))
    bins = torch.linspace(0, 12_000, 513, dtype=torch.float64)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    area = 2 / (edges[2:] - edges[:-2])
    return (torch.minimum(rise, fall).clamp(min=0) * area[:, None]).float()


def log_mel(audio: Tensor, filters: Tensor) -> Tensor:
    """Audio [batch, samples] at 24 kHz to the speaker encoder's input [batch, 128, samples // 256]."""
    audio = F.pad(audio[:, None], (384, 384), mode="reflect")[:, 0]
    window = torch.hann_window(1024, device=audio.device)
    spectrum = torch.stft(audio, 1024, 256, window=window, center=False, return_complex=True)
    power = torch.view_as_real(spectrum).square().sum(-1)
    return (filters @ (power + 1e-9).sqrt()).clamp(min=1e-5).log()


class TalkerModel(nn.Module):
    """All of model.safetensors: `talker.*` and `speaker_encoder.*`."""

    def __init__(self, sizes: TalkerSizes, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes = sizes
        self.talker = Talker(sizes, dropout)
        self.speaker_encoder = SpeakerEncoder(sizes.speaker, sizes.talker.hidden)
        self.register_buffer("mel_filters", mel_filters(), persistent=False)

    def x_vectors(self, audio: Tensor) -> Tensor:
        """Voices [batch, hidden] of clips [batch, samples] at 24 kHz."""
        with torch.autocast(audio.device.type, enabled=False):
            mel = log_mel(audio.float(), self.mel_filters)
        return self.speaker_encoder(mel).float()


@torch.no_grad()
def initialise(model: TalkerModel, seed: int = 0) -> None:
    """Fresh weights, in place; the speaker encoder's scale is set by `calibrate_speaker`."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "norm" in name:
            continue
        if name.endswith(".bias"):
            weight.zero_()
            continue
        fan_in = math.prod(weight.shape[1:])
        if name.startswith("speaker_encoder."):
            std = math.sqrt(2 / fan_in)
        elif "codec_embedding" in name:
            std = 0.1
        elif "text_embedding" in name:
            std = 0.5
        elif name.endswith(("codec_head.weight",)) or "lm_head" in name:
            std = 0.02
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            stack = model.sizes.predictor if "code_predictor" in name else model.sizes.talker
            std = 1 / math.sqrt(fan_in * 2 * stack.layers)
        else:
            std = 1 / math.sqrt(fan_in)
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)
        if name == "speaker_encoder.blocks.0.conv.weight":
            # Blind to loudness at first: a log-mel's large constant part drowns what tells voices apart.
            weight -= weight.mean(dim=(1, 2), keepdim=True)
    _set_constant(model)


@torch.no_grad()
def calibrate_speaker(model: TalkerModel, audio: Tensor, std: float = 0.3) -> None:
    """Centres and scales fresh x-vectors over varied clips [batch, samples]: they differ from the start."""
    vectors = model.x_vectors(audio)
    gain = std / vectors.std(dim=0).mean().clamp(min=1e-4)
    fc = model.speaker_encoder.fc
    fc.weight *= gain
    fc.bias.copy_((fc.bias - vectors.mean(dim=0)) * gain)


@torch.no_grad()
def _set_constant(model: TalkerModel) -> None:
    """Writes the constant channel, and the tables of unused code books."""
    talker, predictor, depth = model.talker, model.talker.code_predictor, model.sizes.depth
    tables = predictor.model.codec_embedding
    for i in range(depth - 1, CODE_GROUPS - 1):
        tables[i].weight.zero_()
        predictor.lm_head[i].weight.zero_()
    if hasattr(predictor, "small_to_mtp_projection"):
        predictor.small_to_mtp_projection.weight[CHANNEL] = 0
        predictor.small_to_mtp_projection.bias[CHANNEL] = PROJECTED_CONSTANT
    else:
        for table in (*tables, talker.model.codec_embedding):
            table.weight[:CODES_PER_GROUP, CHANNEL] = EMBEDDED_CONSTANT
    for layer in predictor.model.layers:
        layer.self_attn.o_proj.weight[CHANNEL] = 0
        layer.mlp.down_proj.weight[CHANNEL] = 0


@torch.no_grad()
def freeze_constant(model: TalkerModel) -> None:
    """Zeroes the gradients that would move the constant channel; call it after each backward pass."""
    predictor = model.talker.code_predictor
    rows = [layer.self_attn.o_proj.weight for layer in predictor.model.layers]
    rows += [layer.mlp.down_proj.weight for layer in predictor.model.layers]
    columns: list[Tensor] = []
    if hasattr(predictor, "small_to_mtp_projection"):
        rows += [predictor.small_to_mtp_projection.weight, predictor.small_to_mtp_projection.bias]
    else:
        columns = [model.talker.model.codec_embedding.weight]
        columns += [table.weight for table in predictor.model.codec_embedding]
    for weight in rows:
        if weight.grad is not None:
            weight.grad[CHANNEL].zero_()
    for weight in columns:
        if weight.grad is not None:
            weight.grad[:CODES_PER_GROUP, CHANNEL].zero_()


UNUSED_LOGIT = 30.0


@torch.no_grad()
def silence_unused_heads(model: TalkerModel, frames: int = 2048) -> float:
    """Sets the heads of unused code books, in place, so that they choose code 0 whatever the frame.

    Their logit for code 0 is at least about UNUSED_LOGIT, every other is 0: a draw at temperature 1 is
    another code once in 10^9. Returns the least logit found over random frames.
    """
    predictor, depth = model.talker.code_predictor, model.sizes.depth
    if depth == CODE_GROUPS:
        return math.inf
    generator = torch.Generator().manual_seed(0)
    width = model.sizes.talker.hidden
    hidden = torch.randn(frames, width, generator=generator) * model.talker.model.norm.weight.cpu()
    codes = torch.randint(CODES_PER_GROUP, (frames, CODE_GROUPS), generator=generator)
    codes[:, depth:] = 0
    device = model.talker.codec_head.weight.device
    hidden, codes = hidden.to(device), codes.to(device)
    first = model.talker.model.codec_embedding(codes[:, 0])
    constant = predictor.states(hidden, first, codes, CODE_GROUPS)[:, depth - 1 :, CHANNEL]
    if constant.min() * constant.max() <= 0:
        raise ValueError("the constant channel of the code predictor is not constant")
    gain = UNUSED_LOGIT / constant.abs().min() * constant.sign().flatten()[0]
    gain = gain.bfloat16().float()
    for group in range(depth, CODE_GROUPS):
        head = predictor.lm_head[group - 1].weight
        head.zero_()
        head[0, CHANNEL] = gain
    return float((constant * gain).min())
