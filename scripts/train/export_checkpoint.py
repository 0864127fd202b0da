"""Puts codec, talker, speaker encoder and tokenizer together as a Qwen3-TTS Base checkpoint.

    python -m scripts.train.export_checkpoint --talker out --tokenizer tokenizer \\
        --speech-tokenizer speech_tokenizer --out checkpoint

`--speech-tokenizer` is the folder that export_codec writes (config.json and model.safetensors in it).
Refuses a checkpoint above 90 MB, or whose tensors are not those of the published layout.
"""

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from backend.checkpoint import SIZES, configs
from backend.checkpoint.layout import model_shapes
from backend.checkpoint.text import TextTokenizer, read_tokenizer
from scripts.train.talker_checkpoint import load_talker
from scripts.train.talker_model import TalkerModel, TalkerSizes, silence_unused_heads

MAX_BYTES = 90_000_000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--talker", type=Path, required=True, help="talker.pt, or the folder with its pieces")
    add("--tokenizer", type=Path, required=True)
    add("--speech-tokenizer", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--temperature", type=float, default=0.9)
    add("--top-k", type=int, default=50)
    add("--repetition-penalty", type=float, default=1.05)
    add("--subtalker-temperature", type=float, default=0.9)
    add("--subtalker-top-k", type=int, default=50)
    options = parser.parse_args()
    model, about = load_talker(options.talker)
    least = silence_unused_heads(model)
    sampling = {
        "temperature": options.temperature,
        "top_k": options.top_k,
        "repetition_penalty": options.repetition_penalty,
        "subtalker_temperature": options.subtalker_temperature,
        "subtalker_top_k": options.subtalker_top_k,
    }
    tokenizer = read_tokenizer(options.tokenizer)
    write_checkpoint(options.out, model, tokenizer, options.speech_tokenizer, sampling)
    total = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(
        f"step {about['step']}, {total / 1e6:.1f} MB, least logit of an unused code book's code 0 {least:.1f}"
    )
    if total > MAX_BYTES:
        print(f"more than {MAX_BYTES / 1e6:.0f} MB", file=sys.stderr)
        return 1
    return 0


def checkpoint_config(sizes: TalkerSizes, tokenizer: TextTokenizer) -> dict[str, Any]:
    """config.json for these widths."""
    size = replace(
        SIZES["tiny"],
        text_vocab=sizes.text_vocab,
        text_hidden=sizes.text_hidden,
        talker=sizes.talker,
        predictor=sizes.predictor,
        speaker=sizes.speaker,
    )
    return configs.model_config(size, "base", tokenizer)


def write_checkpoint(
    out: Path,
    model: TalkerModel,
    tokenizer: TextTokenizer,
    speech_tokenizer: Path,
    sampling: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Raises ValueError if the model's tensors are not those the config asks for."""
    config = checkpoint_config(model.sizes, tokenizer)
    tensors = {name: t.detach().to(dtype).contiguous() for name, t in model.state_dict().items()}
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    if shapes != model_shapes(config):
        raise ValueError(
            f"not the published layout: {set(shapes.items()) ^ set(model_shapes(config).items())}"
        )
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    contents = {
        "config.json": config,
        "generation_config.json": configs.GENERATION_CONFIG | (sampling or {}),
        "preprocessor_config.json": configs.PREPROCESSOR_CONFIG,
        "speech_tokenizer/configuration.json": configs.CODEC_CONFIGURATION,
        "speech_tokenizer/preprocessor_config.json": configs.CODEC_PREPROCESSOR_CONFIG,
    }
    (out / "speech_tokenizer").mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(speech_tokenizer / name, out / "speech_tokenizer" / name)
    for name, content in contents.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
    for name, text in tokenizer.files().items():
        (out / name).write_text(text, encoding="utf-8")
    for file in out.rglob("*"):
        if file.is_file():
            file.chmod(0o644)


if __name__ == "__main__":
    sys.exit(main())
