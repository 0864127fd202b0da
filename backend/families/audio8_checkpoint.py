"""An Audio8 TTS checkpoint with random weights: narrow transformers around a codec of the published size.

vLLM-Omni fixes the codec's widths (`models/audio8_tts/codec.py`: 285 million weights). So that the file
stays small, all weights of one scale are overlapping windows on one piece of noise.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.checkpoint.store import mark_untrained, save_tensors
from backend.checkpoint.text import train_tokenizer

# vLLM-Omni's pipeline stops at this id, whatever the config says; the others are the published ones too.
EOS_ID = 151645
PAD_ID = 151643
SEMANTIC_BEGIN_ID = 151678
SEMANTIC_CODES = 4096
VOCAB = 155776
CODEBOOKS = 10

CONFIG: dict[str, Any] = {
    "architectures": ["ArkttsForConditionalGeneration"],
    "model_type": "arktts",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "dim": 64,
    "n_head": 2,
    "n_local_heads": 1,
    "head_dim": 32,
    "n_layer": 2,
    "intermediate_size": 128,
    "max_seq_len": 2048,
    "rope_base": 1e6,
    "norm_eps": 1e-6,
    "attention_qkv_bias": True,
    "tie_word_embeddings": True,
    "codebook_size": SEMANTIC_CODES,
    "num_codebooks": CODEBOOKS,
    "semantic_begin_id": SEMANTIC_BEGIN_ID,
    "semantic_end_id": SEMANTIC_BEGIN_ID + SEMANTIC_CODES - 1,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "n_fast_layer": 1,
    "fast_dim": 64,
    "fast_n_head": 2,
    "fast_n_local_heads": 1,
    "fast_head_dim": 32,
    "fast_intermediate_size": 128,
    "codec_sample_rate": 44100,
    "codec_frame_size": 2048,
    "codec_post_n_layer": 1,
    "codec_post_n_head": 16,
    "codec_post_n_local_heads": 8,
    "codec_post_intermediate_size": 64,
}
_SPECIAL_TOKENS = {
    "<|endoftext|>": PAD_ID,
    "<|im_start|>": 151644,
    "<|im_end|>": EOS_ID,
    "<|speaker:0|>": 151646,
    "<|voice|>": 151647,
}
_TEXT_PIECES = 1024
# How far every row of the embedding, and the end of speech beyond them, lies in one common direction:
# the end is then drawn about once in 25 frames.
_COMMON = 1.0
_EOS_COMMON = 1.75
_NOISE_LENGTH = 2**20
# The decoder's last convolution, before its tanh: a tenth of full scale.
_LAST_CONVOLUTION = "decoder.model.6."
_LAST_GAIN = 0.02


def make_checkpoint(out_dir: Path, seed: int = 0) -> None:
    """Writes the checkpoint into `out_dir`, made if need be; imports vLLM-Omni for the codec's layout."""
    out_dir.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    save_tensors(_model_weights(generator), out_dir / "model.safetensors")
    torch.save(_codec_weights(generator), out_dir / "codec.pth")
    tokenizer = json.dumps(tokenizer_file(), ensure_ascii=False)
    (out_dir / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    for name, content in (
        ("config.json", CONFIG),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}),
    ):
        (out_dir / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    mark_untrained(out_dir, {"family": "audio8", "seed": seed})


def tokenizer_file() -> dict[str, Any]:
    """The content of tokenizer.json: a small vocabulary, but special tokens at their published ids."""
    pipeline: dict[str, Any] = json.loads(train_tokenizer(_TEXT_PIECES).encoder().to_str())
    vocab: dict[str, int] = pipeline["model"]["vocab"] | _SPECIAL_TOKENS
    # The tokenizers package wants no gaps between ids.
    gaps = set(range(max(vocab.values()))) - set(vocab.values())
    pipeline["model"]["vocab"] = vocab | {f"<|unused:{i}|>": i for i in sorted(gaps)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pipeline["added_tokens"] = [
        {"id": token_id, "content": token, **flags} for token, token_id in _SPECIAL_TOKENS.items()
    ]
    return pipeline


def _model_weights(generator: torch.Generator) -> dict[str, Tensor]:
    dim, fast_dim = CONFIG["dim"], CONFIG["fast_dim"]

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(shape, generator=generator) * std

    embeddings = normal(VOCAB, dim, std=1 / math.sqrt(dim))
    common = torch.nn.functional.normalize(normal(dim, std=1.0), dim=0)
    embeddings += _COMMON * common
    embeddings[EOS_ID] += (_EOS_COMMON - _COMMON) * common
    weights = {
        "embeddings.weight": embeddings,
        "norm.weight": torch.ones(dim),
        "codebook_embeddings.weight": normal(SEMANTIC_CODES * CODEBOOKS, dim, std=0.03),
        "fast_embeddings.weight": normal(SEMANTIC_CODES, fast_dim, std=1.0),
        "fast_output.weight": normal(SEMANTIC_CODES, fast_dim, std=3 / math.sqrt(fast_dim)),
        "fast_norm.weight": torch.ones(fast_dim),
    }
    for prefix, field, bias in (("", "", True), ("fast_", "fast_", False)):
        width, inner = CONFIG[f"{field}dim"], CONFIG[f"{field}intermediate_size"]
        queries = CONFIG[f"{field}n_head"] * CONFIG[f"{field}head_dim"]
        keys = CONFIG[f"{field}n_local_heads"] * CONFIG[f"{field}head_dim"]
        for i in range(CONFIG[f"n_{prefix}layer"]):
            shapes = {
                "attention.wqkv": (queries + 2 * keys, width),
                "attention.wo": (width, queries),
                "feed_forward.w1": (inner, width),
                "feed_forward.w3": (inner, width),
                "feed_forward.w2": (width, inner),
            }
            for name, (rows, columns) in shapes.items():
                # The residual stream stays near the embedding, for the common direction to show in it.
                std = (0.1 if name.endswith(("wo", "w2")) else 1.0) / math.sqrt(columns)
                weights[f"{prefix}layers.{i}.{name}.weight"] = normal(rows, columns, std=std)
            if bias:
                weights[f"{prefix}layers.{i}.attention.wqkv.bias"] = torch.zeros(queries + 2 * keys)
            for norm in ("attention_norm", "ffn_norm"):
                weights[f"{prefix}layers.{i}.{norm}.weight"] = torch.ones(width)
    return {name: weight.to(torch.bfloat16) for name, weight in weights.items()}


def _codec_weights(generator: torch.Generator) -> dict[str, Tensor]:
    """codec.pth, encoder and decoder."""
    from vllm_omni.model_executor.models.audio8_tts.codec import build_arktts_codec

    arguments = {name.removeprefix("codec_"): value for name, value in CONFIG.items() if "codec_post" in name}
    with torch.device("meta"):
        layout = build_arktts_codec(**arguments).state_dict()
    noise: dict[float, Tensor] = {}

    def window(shape: torch.Size, std: float) -> Tensor:
        if std not in noise:
            noise[std] = (torch.randn(_NOISE_LENGTH, generator=generator) * std).half()
        row = math.prod(shape[1:])
        between_rows = min(row, (_NOISE_LENGTH - row) // shape[0])
        within_row = [math.prod(shape[i + 1 :]) for i in range(1, len(shape))]
        return noise[std].as_strided(shape, (between_rows, *within_row))

    def constant(shape: torch.Size, value: float) -> Tensor:
        return torch.full((1,), value).expand(shape)

    def weight(name: str, shape: torch.Size) -> Tensor:
        layer, _, kind = name.rpartition(".")
        if kind in ("original0", "weight_g"):  # the lengths of a normalised weight's rows
            return constant(shape, _LAST_GAIN if name.startswith(_LAST_CONVOLUTION) else 1.0)
        if kind in ("bias", "gamma", "alpha") or layer.endswith("norm"):
            return constant(shape, {"bias": 0.0, "gamma": 0.1}.get(kind, 1.0))
        if kind in ("original1", "weight_v") or layer.endswith("codebook"):
            return window(shape, 1.0)
        return window(shape, 1 / math.sqrt(math.prod(shape[1:])))

    return {name: weight(name, tensor.shape) for name, tensor in layout.items()}
