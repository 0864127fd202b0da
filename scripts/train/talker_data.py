"""The corpus as flat arrays on the training device, and plans of batches drawn from it.

Reads shards NAME.pcm, NAME.jsonl and NAME.codes (see the README). A plan is a few kilobytes of indices;
rows, codes and audio are put together on the device from them (`talker_rows`, `talker_step`).
"""

import json
import logging
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from backend.checkpoint.configs import CODE_GROUPS
from backend.checkpoint.text import TextTokenizer
from scripts.train import talker_rows as tr
from scripts.train.encode_corpus import frames_of, take_shift

log = logging.getLogger(__name__)

HOP_SAMPLES = 1920
SLOTS_PER_FRAME = 4
SLOT_SAMPLES = HOP_SAMPLES // SLOTS_PER_FRAME
HELD_OUT_VOICES = ("bm_fable", "am_puck")
PRESETS = ("heart", "am_michael", "bf_emma", "bm_george")
MAX_VALIDATION = 384
HEART_SHARE, PRESET_SHARE, PRESET_LIFT = 0.26, 0.1, 4.0  # of the utterances drawn


@dataclass
class Utterances:
    """One entry an utterance: voice number, and where its samples, frames and tokens lie."""

    voice: np.ndarray
    start: np.ndarray
    samples: np.ndarray
    frame_start: np.ndarray
    frames: np.ndarray
    text_start: np.ndarray
    tokens: np.ndarray


class Corpus:
    """All utterances but those of held-out voices; tensors are on `device`.

    With several takes (see encode_corpus) frame f of take t is row t * take_frames + f of codes and phones.

    pcm int16 [samples]; codes int16 [frames, 16]; phones uint8 [frames, 4], the phone in the middle of
    each 20 ms (0 is silence); text int32 [tokens].
    """

    def __init__(self, folders: list[Path], tokenizer: TextTokenizer, device: str, takes: int = 1) -> None:
        shards = [path for folder in folders for path in _complete_shards(folder)]
        if not shards:
            raise ValueError(f"no shard with .pcm, .jsonl and .codes in {folders}")
        rows, pcm, codes = [], [], []
        sample_base = frame_base = 0
        for path in shards:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            audio = np.memmap(path.with_suffix(".pcm"), np.dtype("<i2"), "r")
            code = np.fromfile(path.with_suffix(".codes"), "<u2").reshape(-1, CODE_GROUPS)
            counts = frames_of(np.array([line["n"] for line in lines], dtype=np.int64), takes)
            total = int(counts.sum())
            if takes * total != len(code) or lines[-1]["start"] + lines[-1]["n"] > len(audio):
                log.warning("%s left out: %d frames of codes for %d", path.stem, len(code), takes * total)
                continue
            at = frame_base
            for line, count in zip(lines, counts, strict=True):
                if not any(name in line["voice"] for name in HELD_OUT_VOICES) and line["text"].strip():
                    rows.append((line, sample_base + line["start"], at, count))
                at += count
            pcm.append(audio)
            codes.append(code.reshape(takes, total, CODE_GROUPS))
            sample_base += len(audio)
            frame_base += total
        if not rows:
            raise ValueError(f"nothing to train on in {folders}")
        self.voices = sorted({line["voice"] for line, *_ in rows})
        number = {name: i for i, name in enumerate(self.voices)}
        encoded = tokenizer.encoder().encode_batch([line["text"].strip() for line, *_ in rows])
        tokens = np.array([len(one.ids) for one in encoded])
        self.utterances = Utterances(
            voice=np.array([number[line["voice"]] for line, *_ in rows]),
            start=np.array([start for _, start, _, _ in rows]),
            samples=np.array([line["n"] for line, *_ in rows]),
            frame_start=np.array([at for _, _, at, _ in rows]),
            frames=np.array([count for *_, count in rows]),
            text_start=np.cumsum(tokens) - tokens,
            tokens=tokens,
        )
        self.texts = [line["text"].strip() for line, *_ in rows]
        self.phone_names = ["_", *sorted({c for line, *_ in rows for c in line["phones"]} - {"_"})]
        self.takes, self.take_frames = takes, frame_base
        all_codes = np.concatenate(codes, axis=1).reshape(-1, CODE_GROUPS)
        if (all_codes[:, 0] == 0).any():
            raise ValueError("group 0 holds code 0, which vLLM-Omni masks there")
        used = np.flatnonzero((all_codes != 0).any(axis=0))
        self.depth = int(used[-1]) + 1
        self.codes = torch.from_numpy(all_codes.astype(np.int16)).to(device)
        self.pcm = torch.empty(sample_base, dtype=torch.int16, device=device)
        at = 0
        for audio in pcm:
            self.pcm[at : at + len(audio)] = torch.from_numpy(np.array(audio))
            at += len(audio)
        # A later take's phones come later; every utterance ends in slots enough without a phone.
        slots = self._phone_slots(rows, frame_base).ravel()
        slots = np.concatenate(
            [np.roll(slots, take_shift(take, takes) // SLOT_SAMPLES) for take in range(takes)]
        )
        self.phones = torch.from_numpy(slots.reshape(-1, SLOTS_PER_FRAME)).to(device)
        self.text = torch.tensor([i for one in encoded for i in one.ids], dtype=torch.int32, device=device)
        counts_0 = np.bincount(all_codes[:, 0], minlength=2048).astype(np.float64)
        self.used_codes = torch.from_numpy(counts_0 > 0).to(device)
        share = counts_0[counts_0 > 0] / counts_0.sum()
        self.unigram_nats = float(-(share * np.log(share)).sum())
        hours = self.utterances.samples.sum() / 24_000 / 3600
        log.info(
            "%d utterances, %.2f h, %d voices, depth %d, %d of 2048 group-0 codes, %.2f nats a group-0 code",
            *(len(rows), hours, len(self.voices), self.depth, len(share), self.unigram_nats),
        )

    def _phone_slots(self, rows: list, frames: int) -> np.ndarray:
        classes = {c: i for i, c in enumerate(self.phone_names)}
        slots = np.zeros((frames, SLOTS_PER_FRAME), np.uint8)
        for line, _, at, count in rows:
            if len(line["durations"]) != len(line["phones"]):
                continue
            ends = np.cumsum(line["durations"])
            middles = (np.arange(count * SLOTS_PER_FRAME) + 0.5) * SLOT_SAMPLES
            which = np.searchsorted(ends, middles, side="right")
            labels = np.array([*(classes[c] for c in line["phones"]), 0], np.uint8)
            slots[at : at + count] = labels[np.minimum(which, len(ends))].reshape(count, SLOTS_PER_FRAME)
        return slots

    def split(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Utterances to train on, and a few (2 % at most) to validate on: never trained on."""
        order = np.random.default_rng(seed).permutation(len(self.utterances.voice))
        held = min(MAX_VALIDATION, len(order) // 50)
        return np.sort(order[held:]), np.sort(order[:held])


def _complete_shards(folder: Path) -> list[Path]:
    names = sorted(folder.glob("*.jsonl"))
    return [p for p in names if p.with_suffix(".pcm").exists() and p.with_suffix(".codes").exists()]


def voice_shares(seconds: np.ndarray, voices: list[str]) -> np.ndarray:
    """How often each voice is drawn: heart and the other presets by fixed shares, the rest by a power of
    its hours.

    A voice of which there is little must not be drawn so often that it is learnt by heart: a preset gets at
    most PRESET_LIFT times its share of the hours.
    """
    present = seconds > 0
    heart = np.array([name == "heart" for name in voices]) & present
    presets = np.array([name in PRESETS for name in voices]) & present & ~heart
    lifted = np.minimum(PRESET_SHARE, PRESET_LIFT * seconds / seconds.sum())
    fixed = np.where(heart, HEART_SHARE, np.where(presets, lifted, 0.0))
    others = np.where(heart | presets, 0.0, seconds**0.6)
    if others.sum() > 0:
        fixed += others / others.sum() * (1 - fixed.sum())
    return fixed / fixed.sum()


@dataclass
class Plan:
    """One batch: all int64, on the host.

    items [items, ITEM_COLUMNS]; clips [clips, 4]: start and samples of the utterance, offset into it, voice;
    picks [picks]: rows, counted over the whole batch, whose frames the code predictor trains on.
    """

    bucket: int
    items: np.ndarray
    clips: np.ndarray
    picks: np.ndarray


@dataclass(frozen=True)
class Shape:
    """The fixed shape of one bucket's batches."""

    items: int
    rows: int
    clips: int
    clip_samples: int
    picks: int


def bucket_edges(lengths: np.ndarray, buckets: int) -> list[int]:
    """Row counts of the buckets, multiples of 16, that pad items of these lengths least."""
    top = -(-int(lengths.max()) // 16)
    counts = np.bincount(-(-lengths // 16), minlength=top + 1)
    below = np.cumsum(counts)
    best: tuple[int, tuple[int, ...]] | None = None
    for inner in combinations(range(1, top), min(buckets, top) - 1):
        edges = (*inner, top)
        rows = sum(
            edge * int(below[edge] - (below[low] if low else 0))
            for low, edge in zip((0, *inner), edges, strict=True)
        )
        if best is None or rows < best[0]:
            best = (rows, edges)
    assert best is not None
    return [16 * edge for edge in best[1]]


class Planner:
    """Draws items by voice, and fills batches of a few fixed shapes with them."""

    def __init__(
        self,
        corpus: Corpus,
        chosen: np.ndarray,
        *,
        batch_rows: int,
        max_rows: int = 320,
        buckets: int = 4,
        streamed: float = 0.6,
        language: float = 0.7,
        pairs: float = 0.2,
        picks: int = 6144,
        seed: int = 0,
    ) -> None:
        self.corpus, self.chosen = corpus, chosen
        self.streamed, self.language, self.pairs = streamed, language, pairs
        self.rng = np.random.default_rng(seed)
        u = corpus.utterances
        order = np.argsort(u.voice[chosen], kind="stable")
        self.by_voice = chosen[order]
        voices = len(corpus.voices)
        self.count = np.bincount(u.voice[chosen], minlength=voices)
        self.first = np.cumsum(self.count) - self.count
        seconds = np.bincount(u.voice[chosen], weights=u.samples[chosen], minlength=voices) / 24_000
        self.share = voice_shares(np.maximum(seconds, 1e-9) * (self.count > 0), corpus.voices)
        self.max_rows = max_rows
        self.shapes = [Shape(0, max_rows, 0, 0, 0)]
        lengths = tr.item_rows(torch.from_numpy(self.draw(4096))).numpy()
        edges = bucket_edges(lengths, buckets)
        self.shapes = [
            Shape(
                items=max(1, batch_rows // edge),
                rows=edge,
                # At least one a voice, so that every item finds a clip of its own voice.
                clips=min(max(1, batch_rows // edge), max(128, 16 * (voices // 16 + 2))),
                clip_samples=256 * round((2.0 + i) * 24_000 / 256),
                picks=picks,
            )
            for i, edge in enumerate(edges)
        ]
        self.waiting: list[list[np.ndarray]] = [[] for _ in self.shapes]
        self.counts = [0] * len(self.shapes)

    def draw(self, count: int) -> np.ndarray:
        """Random items [about count, ITEM_COLUMNS + 1]: CLIP is still 0, the voice comes last."""
        u, r = self.corpus.utterances, self.rng
        voice = r.choice(len(self.share), size=count, p=self.share)
        one = self.by_voice[self.first[voice] + (r.random(count) * self.count[voice]).astype(np.int64)]
        two = self.by_voice[self.first[voice] + (r.random(count) * self.count[voice]).astype(np.int64)]
        paired = (r.random(count) < self.pairs).astype(np.int64)
        items = np.zeros((count, tr.ITEM_COLUMNS + 1), np.int64)
        items[:, tr.HAS_LANGUAGE] = r.random(count) < self.language
        items[:, tr.STREAMED] = r.random(count) < self.streamed
        columns = (
            (tr.TEXT_START_1, tr.TEXT_LENGTH_1, tr.FRAME_START_1, tr.FRAMES_1, one, 1),
            (tr.TEXT_START_2, tr.TEXT_LENGTH_2, tr.FRAME_START_2, tr.FRAMES_2, two, paired),
        )
        for text_start, text_length, frame_start, frames, which, there in columns:
            items[:, text_start] = u.text_start[which] * there
            items[:, text_length] = u.tokens[which] * there
            take = r.integers(self.corpus.takes, size=count) * self.corpus.take_frames
            items[:, frame_start] = (u.frame_start[which] + take) * there
            items[:, frames] = u.frames[which] * there
        items[:, -1] = voice
        return items[tr.item_rows(torch.from_numpy(items)).numpy() <= self.max_rows]

    def next(self) -> Plan:
        """The next full batch, of whichever shape fills first."""
        while True:
            for bucket, shape in enumerate(self.shapes):
                if self.counts[bucket] >= shape.items:
                    items = np.concatenate(self.waiting[bucket])
                    self.waiting[bucket] = [items[shape.items :]]
                    self.counts[bucket] = len(items) - shape.items
                    return self.plan(bucket, items[: shape.items])
            items = self.draw(512)
            rows = tr.item_rows(torch.from_numpy(items)).numpy()
            where = np.searchsorted([shape.rows for shape in self.shapes], rows)
            for bucket in range(len(self.shapes)):
                part = items[where == bucket]
                self.waiting[bucket].append(part)
                self.counts[bucket] += len(part)

    def plan(self, bucket: int, items: np.ndarray) -> Plan:
        """Clips and predictor rows for items [items, ITEM_COLUMNS + 1], whose last column is the voice."""
        shape, r = self.shapes[bucket], self.rng
        voice, items = items[:, -1], items[:, :-1].copy()
        heard, item_clip = self._assign_clips(voice, shape.clips)
        which = self.by_voice[self.first[heard] + (r.random(len(heard)) * self.count[heard]).astype(np.int64)]
        u = self.corpus.utterances
        offset = (r.random(len(heard)) * u.samples[which]).astype(np.int64)
        # A crop that would run over the end starts again at the front, unless it can begin earlier.
        offset = np.minimum(offset, np.maximum(u.samples[which] - shape.clip_samples, 0))
        clips = np.stack([u.start[which], u.samples[which], offset, heard], axis=1)
        items[:, tr.CLIP] = item_clip
        frames = items[:, tr.FRAMES_1] + items[:, tr.FRAMES_2]
        ends = np.cumsum(frames)
        picked = r.choice(ends[-1], size=shape.picks, replace=ends[-1] < shape.picks)
        item = np.searchsorted(ends, picked, side="right")
        last = tr.item_rows(torch.from_numpy(items)).numpy()
        # An item's rows end with frames + 1 predicting ones.
        row = last[item] - 1 - (ends[item] - picked)
        return Plan(bucket, items, clips, item * shape.rows + row)

    def _assign_clips(self, voice: np.ndarray, clips: int) -> tuple[np.ndarray, np.ndarray]:
        """Voices of the clips, every voice at hand once at least, and each item's clip."""
        present = np.unique(voice)[:clips]
        extra = self.rng.permutation(voice)[: clips - len(present)]
        heard = np.sort(np.concatenate([present, extra]))
        first = np.searchsorted(heard, voice)
        count = np.searchsorted(heard, voice, side="right") - first
        return heard, first + (self.rng.random(len(voice)) * count).astype(np.int64)
