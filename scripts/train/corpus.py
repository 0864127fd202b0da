"""Shards of a speech corpus on disk, and the clean-up that every utterance goes through.

A shard NAME is ``NAME.pcm`` (int16 little endian, 24 kHz, mono) and ``NAME.jsonl`` with one row an
utterance, in the order of the samples: ``voice``, ``text``, ``phones`` (misaki characters, "_" for the
silence at each end), ``durations`` (samples per phone; they sum to ``n``), ``start`` and ``n`` (samples,
into the .pcm).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLE_RATE_HZ = 24_000
SHORTEST_S, LONGEST_S = 0.8, 10.0
LOUDNESS_DBFS = -23.0
PEAK = 0.89
FRAME_SAMPLES = 240

Samples = npt.NDArray[np.float32]
Row = dict[str, Any]


@dataclass
class Utterance:
    """Speech with its alignment: ``durations[i]`` samples of ``samples`` belong to ``phones[i]``."""

    voice: str
    text: str
    phones: str
    durations: list[int]
    samples: Samples


class UnusableSpeechError(ValueError):
    """The utterance is silent, too short or too long for the corpus."""


def frame_levels_db(samples: Samples) -> npt.NDArray[np.float32]:
    """RMS level in dBFS of each whole 10 ms frame."""
    frames = samples[: len(samples) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    levels: npt.NDArray[np.float32] = 10 * np.log10(np.mean(frames**2, axis=1) + 1e-10)
    return levels


def cut_durations(durations: list[int], head: int, tail: int) -> list[int]:
    """Durations after cutting ``head`` samples off the front and ``tail`` off the end, phone by phone."""
    kept = list(durations)
    for order, rest in ((range(len(kept)), head), (range(len(kept) - 1, -1, -1), tail)):
        for i in order:
            cut = min(rest, kept[i])
            kept[i] -= cut
            rest -= cut
    return kept


def tidy(speech: Utterance, head_ms: float, tail_ms: float) -> Utterance:
    """Trim the silence at the ends to ``head_ms`` and ``tail_ms`` and bring the speech to one loudness.

    Short utterances keep more of their silence, up to the corpus's shortest duration, and get digital silence
    where the engine gave less. Raises UnusableSpeechError.
    """
    levels = frame_levels_db(speech.samples)
    if not len(levels) or levels.max() < -60:
        raise UnusableSpeechError("silent")
    loud = np.flatnonzero(levels > max(levels.max() - 45, -65))
    first, last = int(loud[0]) * FRAME_SAMPLES, (int(loud[-1]) + 1) * FRAME_SAMPLES
    head = max(0, first - round(head_ms * SAMPLE_RATE_HZ / 1000))
    end = min(len(speech.samples), last + round(tail_ms * SAMPLE_RATE_HZ / 1000))
    shortest = round(SHORTEST_S * SAMPLE_RATE_HZ)
    if end - head < shortest:
        head = max(0, head - (shortest - (end - head)) // 2)
        end = min(len(speech.samples), head + shortest)
    durations = cut_durations(speech.durations, head, len(speech.samples) - end)
    samples = speech.samples[head:end]
    if missing := max(0, shortest - len(samples)):
        samples = np.pad(samples, (0, missing))
        durations[-1] += missing
    if len(samples) > LONGEST_S * SAMPLE_RATE_HZ:
        raise UnusableSpeechError("too long")
    # Speech level, not file level: pauses must not make a slow talker louder.
    speaking = levels[levels > levels.max() - 30]
    level_db = 10 * np.log10(np.mean(10 ** (speaking / 10)))
    gain = 10 ** ((LOUDNESS_DBFS - level_db) / 20)
    gain = min(gain, PEAK / float(np.abs(samples).max()))
    # Five milliseconds of fade keep the cut from clicking.
    fade = np.linspace(0, 1, 120, dtype=np.float32)
    samples = samples * np.float32(gain)
    samples[:120] *= fade
    samples[-120:] *= fade[::-1]
    return Utterance(speech.voice, speech.text, speech.phones, durations, samples)


class ShardWriter:
    """Writes one shard under temporary names; ``close`` gives it its own, so that readers see it whole."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name = folder, name
        self._pcm = (folder / f"{name}.pcm.part").open("wb")
        self._rows = (folder / f"{name}.jsonl.part").open("w")
        self.n_samples = 0

    def add(self, speech: Utterance) -> None:
        pcm = np.round(np.clip(speech.samples, -1, 1) * 32767).astype("<i2")
        row: Row = {"voice": speech.voice, "text": speech.text, "phones": speech.phones}
        row |= {"durations": speech.durations, "start": self.n_samples, "n": len(pcm)}
        self._pcm.write(pcm.tobytes())
        self._rows.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.n_samples += len(pcm)

    def close(self) -> None:
        """Publish the shard, the .jsonl last: a reader looks for that one."""
        self._pcm.close()
        self._rows.close()
        for ending in ("pcm", "jsonl"):
            part = self.folder / f"{self.name}.{ending}.part"
            if self.n_samples:
                part.rename(self.folder / f"{self.name}.{ending}")
            else:
                part.unlink()


def read_rows(shard: Path) -> list[Row]:
    """The rows of a shard, given as any path with its name, whatever the ending."""
    with shard.with_suffix(".jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def shards(folder: Path, ending: str = "pcm") -> Iterator[Path]:
    """Paths of the finished shards of a folder, sorted by name."""
    return (path for path in sorted(folder.glob(f"*.{ending}")) if path.with_suffix(".jsonl").exists())
