"""A corpus of six short utterances for tests of the talker's training; its codes are drawn at random."""

import json
from pathlib import Path

import numpy as np

from backend.checkpoint.text import TextTokenizer, train_tokenizer

HOP_SAMPLES = 1920
DEPTH = 3
VOICES = ("low", "high")
# Streamed text gives the first frame one token only, so their first tokens must differ.
TEXTS = ("Hello there.", "Are you well today?", "One, two, three!")


def write_corpus(folder: Path, seed: int = 0) -> None:
    """Both voices say the same three texts; codes, hence speech, differ by voice and text."""
    rng = np.random.default_rng(seed)
    pcm, codes, rows = [], [], []
    start = 0
    for number, voice in enumerate(VOICES):
        for text in TEXTS:
            frames = int(rng.integers(9, 15))
            samples = frames * HOP_SAMPLES - int(rng.integers(0, 900))
            time_s = np.arange(samples) / 24_000
            tone = 0.2 * np.sign(np.sin(2 * np.pi * (110, 310)[number] * time_s))
            pcm.append(((tone + 0.01 * rng.standard_normal(samples)) * 32767).astype("<i2"))
            code = np.zeros((frames, 16), "<u2")
            code[:, :DEPTH] = rng.integers(1, 60, (frames, DEPTH))
            codes.append(code)
            phones = "_" + "".join(rng.choice(list("abcde"), 6)) + "_"
            durations = [samples // len(phones)] * len(phones)
            durations[-1] += samples - sum(durations)
            row = {"voice": voice, "text": text, "phones": phones, "durations": durations}
            rows.append(row | {"start": start, "n": samples})
            start += samples
    folder.mkdir(parents=True, exist_ok=True)
    np.concatenate(pcm).tofile(folder / "shard.pcm")
    np.concatenate(codes).tofile(folder / "shard.codes")
    (folder / "shard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tokenizer(folder: Path) -> TextTokenizer:
    tokenizer = train_tokenizer(512, list(TEXTS))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tokenizer.files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return tokenizer
