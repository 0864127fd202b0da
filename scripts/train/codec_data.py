"""The speech corpus on the training device, and batches cut from it there.

A shard is NAME.pcm (int16, 24 kHz, mono) with NAME.jsonl, one utterance a row:
{"voice", "text", "phones", "durations", "start", "n"}, durations in samples, one for each phone character.
"""

import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.train.codec_model import HOP_SAMPLES

log = logging.getLogger(__name__)

HELD_OUT = ("bm_fable", "am_puck")
PRESETS = ("heart", "am_michael", "bf_emma", "bm_george")
SLOTS = 4  # phone labels a codec frame
SLOT_SAMPLES = HOP_SAMPLES // SLOTS
LABEL_SAMPLES = 80  # of the label track beside the audio, 300 Hz
SILENCE, UNKNOWN = 0, 255
_STRESS, _LENGTH = "ˈˌ", "ːʰ"


@dataclass
class Shard:
    name: str
    pcm: np.ndarray
    rows: list[dict[str, Any]]


def read_shards(folder: str | Path, names: list[str] | None = None) -> Iterator[Shard]:
    """The complete shards of a corpus folder, by name; rows that the audio does not reach are left out."""
    for index in sorted(Path(folder).glob("*.jsonl")):
        pcm_path = index.with_suffix(".pcm")
        if not pcm_path.exists() or pcm_path.stat().st_size == 0 or (names and index.stem not in names):
            continue
        pcm = np.memmap(pcm_path, np.dtype("<i2"), "r")
        rows = []
        for line in index.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # the last line of a shard still being written
                break
            if row["start"] + row["n"] <= len(pcm):
                rows.append(row)
        yield Shard(index.stem, pcm, rows)


def is_held_out(voice: str) -> bool:
    return any(name in voice for name in HELD_OUT)


def phone_alphabet(rows: list[dict[str, Any]]) -> str:
    """Every sounding phone of the rows, in a fixed order; their classes are 1, 2, ..., silence is 0."""
    return "".join(sorted({c for row in rows for c in row["phones"] if _sounds(c)}))


def _sounds(c: str) -> bool:
    return c.isalpha() and c not in _STRESS and c not in _LENGTH


def phone_classes(phones: str, alphabet: str) -> list[int]:
    """One class for each character: a stress mark takes its vowel's, a length mark its owner's."""
    classes = [
        (alphabet.find(c) + 1 or UNKNOWN) if _sounds(c) else -1 if c in _STRESS + _LENGTH else SILENCE
        for c in phones
    ]
    for i, c in enumerate(phones):  # length marks look back
        if c in _LENGTH:
            classes[i] = classes[i - 1] if i and classes[i - 1] >= 0 else SILENCE
    for i in range(len(phones) - 1, -1, -1):  # stress marks look ahead
        if phones[i] in _STRESS:
            classes[i] = classes[i + 1] if i + 1 < len(phones) else SILENCE
    return classes


def voice_shares(samples: dict[str, int], presets: tuple[str, ...], least: float = 0.4) -> dict[str, float]:
    """How often each voice is drawn: by the root of its audio, the presets together at least `least`."""
    share = {v: math.sqrt(n) for v, n in samples.items()}
    ours = sum(s for v, s in share.items() if v in presets)
    others = sum(share.values()) - ours
    if ours and others and ours / (ours + others) < least:
        lift = least / (1 - least) * others / ours
        share = {v: s * lift if v in presets else s for v, s in share.items()}
    total = sum(share.values())
    return {v: s / total for v, s in share.items()}


class Speech:
    """All audio on the device as int16, its phone labels beside it, and batches of windows.

    A window of `frames` codec frames holds up to three utterances of one voice with short silences between
    them; the last is cut where the window ends. Half of the windows begin inside an utterance.
    """

    PLAN_STEPS = 64  # batches planned at once: the device gets one copy for all of them

    def __init__(
        self,
        folder: str | Path,
        device: str,
        frames: int,
        batch: int,
        alphabet: str = "",
        presets: tuple[str, ...] = PRESETS,
        seed: int = 0,
    ) -> None:
        shards = list(read_shards(folder))
        usable = [[r for r in s.rows if not is_held_out(r["voice"]) and r["n"] > 4800] for s in shards]
        rows = [r for part in usable for r in part]
        if not rows:
            raise ValueError(f"no complete shard with utterances in {folder}")
        self.alphabet = alphabet or phone_alphabet(rows)
        bases = np.cumsum([0] + [-(-len(s.pcm) // LABEL_SAMPLES) * LABEL_SAMPLES for s in shards])
        self.pcm = torch.zeros(int(bases[-1]), dtype=torch.int16, device=device)
        labels = np.zeros(int(bases[-1]) // LABEL_SAMPLES, np.uint8)
        start = []
        for shard, part, base in zip(shards, usable, bases, strict=False):
            self.pcm[base : base + len(shard.pcm)] = torch.from_numpy(np.array(shard.pcm)).to(device)
            for row in part:
                start.append(base + row["start"])
                self._label(labels, start[-1], row)
        self.labels = torch.from_numpy(labels).to(device)
        voices = sorted({r["voice"] for r in rows})
        number = {v: i for i, v in enumerate(voices)}
        voice = np.array([number[r["voice"]] for r in rows])
        order = np.argsort(voice, kind="stable")
        n = np.array([r["n"] for r in rows])
        self.start, self.n = np.array(start)[order], n[order]
        self.first = np.searchsorted(voice[order], np.arange(len(voices)))
        self.count = np.bincount(voice, minlength=len(voices))
        samples = {v: int(n[voice == i].sum()) for v, i in number.items()}
        shares = voice_shares(samples, presets)
        self.share = np.array([shares[v] for v in voices])
        self.device, self.frames, self.batch = device, frames, batch
        self.rng = np.random.default_rng(seed)
        self._plan: Iterator[Tensor] = iter(())
        self.summary = {
            "shards": len(shards),
            "utterances": len(rows),
            "hours": round(float(n.sum()) / 24000 / 3600, 2),
            "voices": len(voices),
            "phones": len(self.alphabet),
            "preset_share": round(sum(shares.get(v, 0.0) for v in presets), 3),
        }

    def _label(self, labels: np.ndarray, start: int, row: dict[str, Any]) -> None:
        lo = start // LABEL_SAMPLES
        if len(row["durations"]) != len(row["phones"]) or sum(row["durations"]) != row["n"]:
            log.warning("durations do not fit, phones unknown: %s", row["text"])
            labels[lo : (start + row["n"]) // LABEL_SAMPLES] = UNKNOWN
            return
        classes = phone_classes(row["phones"], self.alphabet)
        ends = (start + np.cumsum(row["durations"])) // LABEL_SAMPLES
        labels[lo : ends[-1]] = np.repeat(np.array(classes, np.uint8), np.diff(ends, prepend=lo))

    def plan(self, count: int) -> np.ndarray:
        """(count, 3, 3): for each window up to three pieces (place in the window, place in pcm, samples)."""
        total, r = self.frames * HOP_SAMPLES, self.rng
        voice = r.choice(len(self.share), size=count, p=self.share)
        plan = np.zeros((count, 3, 3), np.int64)
        inside = r.random(count) < 0.5
        at = np.where(inside, 0, r.integers(0, 6000, count))
        for k in range(3):
            u = self.first[voice] + (r.random(count) * self.count[voice]).astype(np.int64)
            skip = np.zeros(count, np.int64)
            if k == 0:
                skip = (inside * r.random(count) * np.maximum(self.n[u] - total // 2, 0)).astype(np.int64)
            n = np.clip(np.minimum(self.n[u] - skip, total - at), 0, None)
            plan[:, k] = np.stack([at, self.start[u] + skip, n], 1)
            at = at + n + r.integers(0, 6000, count)
        return plan

    def next(self) -> tuple[Tensor, Tensor]:
        """Audio (batch, 1, frames * 1920) in [-1, 1], phone classes (batch, frames, 4)."""
        plan = next(self._plan, None)
        if plan is None:
            host = self.plan(self.PLAN_STEPS * self.batch).reshape(self.PLAN_STEPS, self.batch, 3, 3)
            self._plan = iter(torch.from_numpy(host).to(self.device, non_blocking=True))
            plan = next(self._plan)
        at = torch.arange(self.frames * HOP_SAMPLES, device=self.device)[None]
        source = torch.full_like(at, -1).expand(self.batch, -1)
        for k in range(3):
            i = at - plan[:, k, 0, None]
            source = torch.where((i >= 0) & (i < plan[:, k, 2, None]), plan[:, k, 1, None] + i, source)
        sound, index = source >= 0, source.clamp(min=0)
        gain = torch.empty(self.batch, 1, device=self.device).uniform_(-6, 2).mul_(math.log(10) / 20).exp_()
        wav = torch.where(sound, self.pcm[index].float() / 32768, 0.0) * gain
        wav = (wav + 3e-5 * torch.randn_like(wav)).clamp_(-1, 1)  # no digital silence
        middle = slice(SLOT_SAMPLES // 2, None, SLOT_SAMPLES)
        label = torch.where(sound[:, middle], self.labels[index[:, middle] // LABEL_SAMPLES].long(), SILENCE)
        return wav[:, None], label.view(self.batch, self.frames, SLOTS)
