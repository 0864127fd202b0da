"""Writes checkpoints to disk."""

import json
from pathlib import Path
from typing import Any

from backend.checkpoint.sizes import SIZES, Variant

# Raise it when the same seed would give other files.
MAKER_VERSION = 1
_MARKER = "untrained.json"
_CODEC_FOLDER = "speech_tokenizer"
_FILES = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "model.safetensors",
    f"{_CODEC_FOLDER}/config.json",
    f"{_CODEC_FOLDER}/configuration.json",
    f"{_CODEC_FOLDER}/preprocessor_config.json",
    f"{_CODEC_FOLDER}/model.safetensors",
    _MARKER,
)

# The trained model that comes with the repository (assets/model/README.md).
BUNDLED_DIR = Path(__file__).resolve().parents[2] / "assets" / "model"


def make_checkpoint(out_dir: Path, size: str, variant: Variant, seed: int = 0, device: str = "cpu") -> None:
    """Writes a Qwen3-TTS 12 Hz checkpoint with random weights into `out_dir` (made if need be).

    The same arguments give the same bytes on the same version of torch and kind of
    device. Raises KeyError for an unknown size.
    """
    # torch takes seconds to import, and who only looks for the bundled model needs none.
    from backend.checkpoint import configs
    from backend.checkpoint.text import train_tokenizer
    from backend.checkpoint.weights import make_codec_weights, make_model_weights

    widths = SIZES[size]
    (out_dir / _CODEC_FOLDER).mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(widths.text_vocab)
    config, codec = configs.model_config(widths, variant, tokenizer), configs.codec_config(widths)
    marker = {"maker_version": MAKER_VERSION, "size": size, "variant": variant, "seed": seed}
    texts = tokenizer.files() | {
        name: json.dumps(content, indent=2) + "\n"
        for name, content in (
            ("config.json", config),
            ("generation_config.json", configs.GENERATION_CONFIG),
            ("preprocessor_config.json", configs.PREPROCESSOR_CONFIG),
            (f"{_CODEC_FOLDER}/config.json", codec),
            (f"{_CODEC_FOLDER}/configuration.json", configs.CODEC_CONFIGURATION),
            (f"{_CODEC_FOLDER}/preprocessor_config.json", configs.CODEC_PREPROCESSOR_CONFIG),
            (_MARKER, marker),
        )
    }
    save_tensors(make_model_weights(config, seed, device), out_dir / "model.safetensors")
    save_tensors(make_codec_weights(codec, seed, device), out_dir / _CODEC_FOLDER / "model.safetensors")
    for name, text in texts.items():
        (out_dir / name).write_text(text, encoding="utf-8")
    for name in _FILES:
        (out_dir / name).chmod(0o644)


def save_tensors(tensors: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"}
    )


def mark_untrained(folder: Path, content: dict[str, Any]) -> None:
    """Lets `is_untrained` know the checkpoint in `folder`, made as `content` says."""
    (folder / _MARKER).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def is_untrained(model_dir: str | Path) -> bool:
    """Whether the checkpoint was made here with random weights; False for a hub id or any other folder."""
    return (Path(model_dir) / _MARKER).is_file()
