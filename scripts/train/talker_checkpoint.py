"""talker.pt: dict(sizes, model, speaker_encoder, step, log), in bf16, whole or in pieces of 15 MiB.

Tables of code books that the codec leaves unused are constants and are not stored.
"""

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import torch

from backend.checkpoint.sizes import SpeakerEncoderSize, Stack
from scripts.train.talker_model import TalkerModel, TalkerSizes, initialise

NAME = "talker.pt"
PIECE_BYTES = 15 * 2**20
_SPEAKER = "speaker_encoder."


def is_unused(name: str, depth: int) -> bool:
    """Whether tensor `name` is the table or the head of a code book from `depth` on."""
    parts = ("model.codec_embedding", "lm_head")
    return any(f"code_predictor.{part}.{i}." in name for part in parts for i in range(depth - 1, 15))


def save_talker(model: TalkerModel, folder: Path, step: int, log: list[dict[str, Any]]) -> int:
    """Writes talker.pt.0, talker.pt.1, ... over those of the last save; returns their bytes."""
    state = {
        name: tensor.detach().to("cpu", torch.bfloat16)
        for name, tensor in model.state_dict().items()
        if not is_unused(name, model.sizes.depth)
    }
    blob = {
        "sizes": dataclasses.asdict(model.sizes),
        "model": {n: t for n, t in state.items() if not n.startswith(_SPEAKER)},
        "speaker_encoder": {n: t for n, t in state.items() if n.startswith(_SPEAKER)},
        "step": step,
        "log": log,
    }
    buffer = io.BytesIO()
    torch.save(blob, buffer)
    data = buffer.getbuffer()
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]
    for i, piece in enumerate(pieces):
        part = folder / f".{NAME}.{i}.part"
        part.write_bytes(piece)
    for i in range(len(pieces)):
        os.replace(folder / f".{NAME}.{i}.part", folder / f"{NAME}.{i}")
    about = {"step": step, "bytes": len(data), "pieces": len(pieces)}
    (folder / "talker.json").write_text(json.dumps(about) + "\n")
    return len(data)


def load_talker(path: Path, dropout: float = 0.0) -> tuple[TalkerModel, dict[str, Any]]:
    """The model in float32 on the CPU, and step and log; `path` is a file or a folder of pieces."""
    if path.is_dir():
        pieces = sorted(path.glob(f"{NAME}.?")) or [path / NAME]
        data = b"".join(piece.read_bytes() for piece in pieces)
    else:
        data = path.read_bytes()
    blob = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    sizes = blob["sizes"]
    for name in ("talker", "predictor"):
        sizes[name] = Stack(**sizes[name])
    speaker = sizes["speaker"]
    sizes["speaker"] = SpeakerEncoderSize(**(speaker | {"channels": tuple(speaker["channels"])}))
    model = TalkerModel(TalkerSizes(**sizes), dropout)
    initialise(model)
    state = {name: t.float() for name, t in (blob["model"] | blob["speaker_encoder"]).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    unused = [n for n in missing if "code_predictor" not in n]
    if unused or unexpected:
        raise ValueError(f"talker.pt does not fit its own sizes: {unused} missing, {unexpected} unexpected")
    return model, {k: blob[k] for k in ("step", "log")}
