"""Holds our talker to the reference package's, from what `reference_dump` kept of the same checkpoint.

    python -m scripts.train.compare_reference DUMP.npz TALKER_FOLDER TOKENIZER_FOLDER

Prints the largest differences, in standard deviations of the reference's values where those are above 1:
of prompt rows, of logits teacher-forced along the reference's codes (group 0, and all residual groups),
and of x-vectors. Exits with 1 if any is above 1e-4.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from backend.checkpoint.text import TextTokenizer, read_tokenizer
from scripts.train import talker_rows as tr
from scripts.train.talker_checkpoint import load_talker
from scripts.train.talker_model import TalkerModel, silence_unused_heads

TOLERANCE = 1e-4


@torch.no_grad()
def compare(dump: dict[str, np.ndarray], model: TalkerModel, tokenizer: TextTokenizer) -> dict[str, float]:
    """Largest differences by case and part."""
    talker, ids = model.talker, tr.text_ids(tokenizer)
    encoder = tokenizer.encoder()
    text, clip_text = (encoder.encode(str(dump[name])).ids for name in ("text", "clip_text"))
    worst: dict[str, float] = {}
    for case in sorted({name.split("/")[0] for name in dump if "/" in name}):
        in_context, streamed, language = (int(c) for c in case)
        got = {name.split("/")[1]: dump[name] for name in dump if name.startswith(case + "/")}
        codes = torch.from_numpy(got["codes"]).long().reshape(-1, 16)
        steps = len(got["logits"])
        reference_frames = (len(codes) - (steps - 1)) if in_context else 0
        flat_text = torch.tensor([*(clip_text if in_context else []), *text])
        first_text = len(clip_text) if in_context else 0
        item = torch.zeros(1, tr.ITEM_COLUMNS, dtype=torch.long)
        item[0, tr.HAS_LANGUAGE], item[0, tr.STREAMED] = language, streamed
        item[0, tr.TEXT_LENGTH_1], item[0, tr.TEXT_START_2] = first_text, first_text
        item[0, tr.TEXT_LENGTH_2] = len(text)
        item[0, tr.FRAMES_1], item[0, tr.FRAME_START_2] = reference_frames, reference_frames
        item[0, tr.FRAMES_2] = len(codes) - reference_frames
        rows = tr.build_rows(item, int(tr.item_rows(item)), flat_text, ids)
        vector = model.x_vectors(torch.from_numpy(dump["audio"])[None])
        worst[f"{case} x-vector"] = _difference(vector, got["x_vector"])
        x = talker.text_rows()[rows.text]
        x = x + talker.model.codec_embedding(rows.codec.clamp(min=0)) * (rows.codec >= 0)[..., None]
        x = x + talker.embed_frames(codes[rows.frame.clamp(min=0)]) * (rows.frame >= 0)[..., None]
        x = x + vector[:, None] * rows.voice[..., None]
        prompt = got["prompt"]
        worst[f"{case} prompt"] = _difference(x[:, : prompt.shape[1]], prompt)
        hidden = talker.model.run(x)
        new = (rows.target >= reference_frames) | rows.end
        logits = talker.codec_head(hidden[new])[:steps]
        worst[f"{case} logits"] = _difference(logits, got["logits"])
        frames = codes[reference_frames:]
        states = talker.code_predictor.states(
            hidden[new][: len(frames)], talker.model.codec_embedding(frames[:, 0]), frames, 16
        )
        for group in range(1, 16):
            ours = talker.code_predictor.lm_head[group - 1](states[:, group - 1])
            name = f"{case} residual logits"
            worst[name] = max(worst.get(name, 0.0), _difference(ours, got[f"group_{group}"][: len(frames)]))
    return worst


def _difference(ours: torch.Tensor, theirs: np.ndarray) -> float:
    reference = torch.from_numpy(theirs)
    if ours.shape != reference.shape:
        raise ValueError(f"shapes differ: {tuple(ours.shape)} here, {tuple(reference.shape)} there")
    return float((ours - reference).abs().max() / reference.std().clamp(min=1.0))


def main() -> int:
    dump, talker, tokenizer = sys.argv[1:]
    model, _ = load_talker(Path(talker))
    silence_unused_heads(model)
    with np.load(dump) as archive:
        worst = compare(dict(archive), model.eval(), read_tokenizer(Path(tokenizer)))
    for name, value in worst.items():
        print(f"{name}: {value:.2e}")
    return int(max(worst.values()) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
