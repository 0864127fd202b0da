"""How wide and deep each checkpoint size is."""

from dataclasses import dataclass
from typing import Literal

Variant = Literal["base", "custom_voice", "voice_design"]
VARIANTS: tuple[Variant, ...] = ("base", "custom_voice", "voice_design")


@dataclass(frozen=True)
class Stack:
    """One transformer: `layers` blocks of width `hidden` with grouped-query attention."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class SpeakerEncoderSize:
    """ECAPA-TDNN widths; the last channel count is that of the feature aggregation."""

    channels: tuple[int, ...]
    attention: int
    res2net_scale: int
    squeeze: int


@dataclass(frozen=True)
class Size:
    """Every width that differs between sizes. What all sizes share is in `configs`."""

    model_size: str  # the published `tts_model_size`
    text_vocab: int
    text_hidden: int
    talker: Stack
    predictor: Stack
    speaker: SpeakerEncoderSize
    encoder: Stack
    encoder_filters: int
    encoder_codebook_dim: int
    decoder: Stack
    decoder_latent: int
    decoder_codebook_dim: int
    decoder_dim: int


_PUBLISHED_SPEAKER = SpeakerEncoderSize(
    (512, 512, 512, 512, 1536), attention=128, res2net_scale=8, squeeze=128
)


def _published(model_size: str, hidden: int) -> Size:
    # The published text vocabulary has 151,936 rows; a random model gains nothing from them.
    return Size(
        model_size=model_size,
        text_vocab=2048,
        text_hidden=2048,
        talker=Stack(hidden, mlp=3 * hidden, layers=28, heads=16, kv_heads=8, head_dim=128),
        predictor=Stack(1024, mlp=3072, layers=5, heads=16, kv_heads=8, head_dim=128),
        speaker=_PUBLISHED_SPEAKER,
        encoder=Stack(512, mlp=2048, layers=8, heads=8, kv_heads=8, head_dim=64),
        encoder_filters=64,
        encoder_codebook_dim=256,
        decoder=Stack(512, mlp=1024, layers=8, heads=16, kv_heads=16, head_dim=64),
        decoder_latent=1024,
        decoder_codebook_dim=512,
        decoder_dim=1536,
    )


SIZES: dict[str, Size] = {
    "tiny": Size(
        model_size="1b7",
        text_vocab=1024,
        text_hidden=128,
        talker=Stack(256, mlp=512, layers=4, heads=4, kv_heads=2, head_dim=64),
        predictor=Stack(128, mlp=256, layers=2, heads=2, kv_heads=1, head_dim=64),
        speaker=SpeakerEncoderSize((64, 64, 64, 64, 192), attention=32, res2net_scale=4, squeeze=32),
        encoder=Stack(64, mlp=128, layers=2, heads=2, kv_heads=2, head_dim=32),
        encoder_filters=8,
        encoder_codebook_dim=16,
        decoder=Stack(64, mlp=128, layers=2, heads=2, kv_heads=2, head_dim=32),
        decoder_latent=128,
        decoder_codebook_dim=64,
        decoder_dim=128,
    ),
    "small": Size(
        model_size="1b7",
        text_vocab=2048,
        text_hidden=256,
        talker=Stack(384, mlp=1024, layers=6, heads=6, kv_heads=2, head_dim=64),
        predictor=Stack(256, mlp=768, layers=3, heads=4, kv_heads=2, head_dim=64),
        speaker=SpeakerEncoderSize((128, 128, 128, 128, 384), attention=64, res2net_scale=8, squeeze=64),
        encoder=Stack(192, mlp=512, layers=3, heads=3, kv_heads=3, head_dim=64),
        encoder_filters=24,
        encoder_codebook_dim=64,
        decoder=Stack(192, mlp=512, layers=4, heads=3, kv_heads=3, head_dim=64),
        decoder_latent=256,
        decoder_codebook_dim=128,
        decoder_dim=384,
    ),
    "0.6b": _published("0b6", hidden=1024),
    "1.7b": _published("1b7", hidden=2048),
}
