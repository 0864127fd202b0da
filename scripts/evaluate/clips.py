"""Clips to judge: the rows of a JSONL file, their sound, and confidence intervals over them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

# What every recogniser, rater and speaker encoder used here works at.
RATE_HZ = 16000

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Clip:
    """A file, what it should say, and the group that its figures are counted in."""

    path: Path
    text: str
    voice: str


def read_rows(listing: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; blank lines are skipped."""
    return [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_clips(folder: Path, listing: Path, group: str = "voice") -> list[Clip]:
    """The clips of `folder` that `listing` names; `group` is the key of a row to count figures by.

    Exits with one sentence where a file is missing or nothing is listed.
    """
    clips = [
        Clip(folder / row["file"], row["text"], str(row.get(group) or "all")) for row in read_rows(listing)
    ]
    if not clips:
        raise SystemExit(f"{listing} lists no clips.")
    if missing := [clip.path for clip in clips if not clip.path.is_file()]:
        raise SystemExit(f"{len(missing)} files are missing, the first is {missing[0]}.")
    return clips


def load_audio(path: Path) -> Samples:
    """Mono float32 [samples] at RATE_HZ, within [-1, 1]."""
    import soxr

    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono = samples.mean(axis=1)
    if rate_hz != RATE_HZ:
        mono = soxr.resample(mono, rate_hz, RATE_HZ)
    return np.clip(mono, -1.0, 1.0).astype(np.float32)


def by_voice(clips: Sequence[Clip]) -> dict[str, list[int]]:
    """The indices of each voice's clips, in order of first appearance; then, of several voices, of all."""
    groups: dict[str, list[int]] = {}
    for index, clip in enumerate(clips):
        groups.setdefault(clip.voice, []).append(index)
    return groups if len(groups) == 1 else groups | {"all": list(range(len(clips)))}


def ratio_interval(
    numerators: Iterable[float], denominators: Iterable[float], resamples: int = 2000
) -> tuple[float, float, float]:
    """sum(numerators) / sum(denominators) over clips, and its 95 % interval by bootstrap over clips.

    Clips, not words, are drawn again: errors within a clip are not independent.
    """
    top = np.asarray(list(numerators), np.float64)
    bottom = np.asarray(list(denominators), np.float64)
    draws = np.random.default_rng(0).integers(0, len(top), (resamples, len(top)))
    ratios = top[draws].sum(axis=1) / bottom[draws].sum(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(top.sum() / bottom.sum()), float(low), float(high)


def mean_interval(values: Iterable[float]) -> tuple[float, float, float]:
    """The mean over clips and its 95 % interval by bootstrap."""
    listed = list(values)
    return ratio_interval(listed, np.ones(len(listed)))
