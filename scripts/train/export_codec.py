"""A trained codec as speech_tokenizer/ of a Qwen3-TTS 12 Hz checkpoint.

    python -m scripts.train.export_codec CODEC OUT/speech_tokenizer [--dtype fp16]
    REFERENCE_VENV/bin/python -m scripts.train.export_codec CODEC OUT/speech_tokenizer --check

--check compares with the reference classes of the qwen-tts package instead of writing. fp16 is what the
trainer saves in, so nothing is lost; in bf16 the decoder would carry 3 bits fewer in every weight.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backend.checkpoint import SIZES
from backend.checkpoint.configs import (
    CODEC_CONFIGURATION,
    CODEC_PREPROCESSOR_CONFIG,
    CODES_PER_GROUP,
    codec_config,
)
from backend.checkpoint.sizes import Stack
from scripts.train.codec_model import GROUPS, HOP_SAMPLES, Codec, load_codec

FAR = 1e3  # a vector that is never nearest
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def config_of(sizes: dict[str, int]) -> dict[str, Any]:
    """speech_tokenizer/config.json of a codec of these sizes."""

    def stack(kind: str) -> Stack:
        heads = sizes[f"{kind}_heads"]
        hidden, mlp, layers = (sizes[f"{kind}_{x}"] for x in ("hidden", "inter", "layers"))
        return Stack(hidden, mlp, layers, heads, heads, sizes[f"{kind}_head_dim"])

    size = replace(
        SIZES["tiny"],
        encoder=stack("enc"),
        encoder_filters=sizes["enc_filters"],
        encoder_codebook_dim=sizes["cb_dim"],
        decoder=stack("dec"),
        decoder_latent=sizes["dec_latent"],
        decoder_codebook_dim=2 * sizes["cb_dim"],
        decoder_dim=sizes["dec_dim"],
    )
    config = codec_config(size)
    config["decoder_config"]["sliding_window"] = sizes["dec_window"]
    config["encoder_config"]["sliding_window"] = sizes["enc_window"]
    # 32 in the published layout, of which only the first 16 are used.
    config["encoder_config"]["num_quantizers"] = GROUPS
    return config


def published_tensors(codec: Codec) -> dict[str, Tensor]:
    """float32 tensors under the published names. Tables are written as sums over a usage of 1."""
    out = {
        k: v.detach().float().cpu().clone()
        for k, v in codec.state_dict().items()
        if not k.startswith("encoder.quantizer.")
    }
    hidden, dim = codec.sizes["enc_hidden"], codec.sizes["cb_dim"]
    parts = (("semantic", "rvq_first", 1), ("acoustic", "rvq_rest", GROUPS - 1))
    for quantizer, (kind, place, levels) in zip(codec.quantizers, parts, strict=True):
        source = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        target = f"decoder.quantizer.{place}"
        out[f"{source}.input_proj.weight"] = quantizer.input_proj.weight.detach().float().cpu().clone()
        out[f"{source}.output_proj.weight"] = torch.zeros(hidden, dim, 1)  # encoding does not use it
        out[f"{target}.input_proj.weight"] = torch.zeros(dim, 2 * dim, 1)  # nor decoding this
        tables = quantizer.tables().detach().float().cpu()
        never = quantizer.penalty.cpu() > 0
        for level in range(levels):
            if level < len(tables):
                search = torch.where(never[:, None], torch.full((), FAR), tables[level])
                decode = torch.where(never[:, None], tables[level][~never].mean(0), tables[level])
            else:  # always code 0, which adds nothing
                decode = torch.zeros(CODES_PER_GROUP, dim)
                search = decode.clone()
                search[1:] = FAR
            book = f"{source}.layers.{level}.codebook"
            out[f"{book}.initialized"] = torch.ones(1)
            out[f"{book}.cluster_usage"], out[f"{book}.embed_sum"] = torch.ones(CODES_PER_GROUP), search
            book = f"{target}.vq.layers.{level}._codebook"
            out[f"{book}.cluster_usage"], out[f"{book}.embedding_sum"] = torch.ones(CODES_PER_GROUP), decode
    return out


def export(codec: Codec, folder: Path, dtype: torch.dtype) -> None:
    """Write config.json, configuration.json, preprocessor_config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(codec.sizes)
    for name, content in (
        ("config.json", config),
        ("configuration.json", CODEC_CONFIGURATION),
        ("preprocessor_config.json", CODEC_PREPROCESSOR_CONFIG),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {k: v.to(dtype).contiguous() for k, v in sorted(published_tensors(codec).items())}
    path = folder / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes files for their owner alone


@torch.no_grad()
def check(codec: Codec, folder: Path) -> dict[str, Any]:
    """Figures of an exported folder in the reference package, on 8 s of shaped noise."""
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

    model, loading = Qwen3TTSTokenizerV2Model.from_pretrained(folder, output_loading_info=True)
    model = model.float().eval()
    torch.manual_seed(0)
    loudness = torch.rand(1, 1, 100).repeat_interleave(HOP_SAMPLES, -1)
    wav = (
        0.1
        * loudness
        * torch.randn(1, 1, HOP_SAMPLES * 100).cumsum(-1).diff(n=1, prepend=torch.zeros(1, 1, 1))
    )
    codes = codec.encode(wav)
    theirs = model.encode(wav[:, 0], torch.ones_like(wav[:, 0]).long()).audio_codes[0].t()[None]
    audio, their_audio = codec.decode(theirs).clamp(-1, 1), model.decoder(theirs)
    figures: dict[str, Any] = {k: len(v) for k, v in loading.items() if hasattr(v, "__len__")}
    figures["codes_equal"] = (codes == theirs).float().mean().item()
    figures["group0_has_code_0"] = bool((theirs[:, 0] == 0).any())
    figures["unused_groups_are_0"] = bool((theirs[:, codec.depth :] == 0).all())
    figures["decode_max_diff"] = (audio - their_audio).abs().max().item()
    figures["decode_rms"] = their_audio.std().item()
    for left in (25, 72):
        chunked = model.decoder.chunked_decode(theirs, chunk_size=25, left_context_size=left)
        figures[f"chunks_25+{left}_max_diff"] = (chunked - their_audio).abs().max().item()
    return figures


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("codec", type=Path, help="codec.pt, or a folder with it whole or in pieces")
    p.add_argument("folder", type=Path)
    p.add_argument("--dtype", choices=DTYPES, default="fp16")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    codec = load_codec(a.codec)
    if a.check:
        print(json.dumps(check(codec, a.folder)))
        return
    export(codec, a.folder, DTYPES[a.dtype])
    size = (a.folder / "model.safetensors").stat().st_size
    print(f"{a.folder}: depth {codec.depth}, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
