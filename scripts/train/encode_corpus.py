"""Encode every shard of a corpus with a trained codec: NAME.codes beside NAME.pcm.

    python -m scripts.train.encode_corpus --codec DIR --corpus DIR

NAME.codes is uint16 (little endian), [takes, sum over rows of frames, 16], in the order of NAME.jsonl. Each
utterance is encoded by itself, zero-padded to whole frames; groups beyond the codec's depth hold 0.
Each take begins with a little more silence than the one before, all within a frame: the same speech falls
into frames another way and gets other codes, so that a talker cannot learn them by heart. See `frames_of`.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from scripts.train.codec_data import read_shards
from scripts.train.codec_model import GROUPS, HOP_SAMPLES, Codec, load_codec


def take_shift(take: int, takes: int) -> int:
    """Samples of silence in front of an utterance in this take."""
    return take * HOP_SAMPLES // takes


def frames_of(n_samples: np.ndarray, takes: int) -> np.ndarray:
    """Frames of utterances of so many samples, the same in every take: the last take's."""
    return -(-(n_samples + take_shift(takes - 1, takes)) // HOP_SAMPLES)


@torch.no_grad()
def encode_utterances(
    codec: Codec,
    pcm: np.ndarray,
    starts: Sequence[int],
    lengths: Sequence[int],
    batch_frames: int,
    take: int = 0,
    takes: int = 1,
) -> np.ndarray:
    """Codes [sum of frames, 16] of one take of the utterances of int16 `pcm`, in the given order.

    Batches hold utterances of like length, up to `batch_frames` frames with their padding. The encoder is
    causal, so padding at the end changes no code before it.
    """
    device = next(codec.parameters()).device
    audio = torch.from_numpy(np.array(pcm)).to(device)
    start, n = np.array(starts), np.array(lengths)
    frames, shift = frames_of(n, takes), take_shift(take, takes)
    place = np.concatenate([[0], np.cumsum(frames)])
    codes = torch.zeros(int(place[-1]), GROUPS, dtype=torch.int16, device=device)
    order = np.argsort(-frames, kind="stable")
    done = 0
    while done < len(order):
        longest = int(frames[order[done]])
        rows = order[done : done + max(1, batch_frames // longest)]
        done += len(rows)
        at = torch.arange(longest * HOP_SAMPLES, device=device)[None] - shift
        first, length, begin = (torch.from_numpy(a[rows]).to(device)[:, None] for a in (start, n, place))
        inside = (at >= 0) & (at < length)
        wav = audio[(first + at).clamp(0, len(audio) - 1)].float() / 32768 * inside
        found = codec.encode(wav[:, None]).transpose(1, 2).to(torch.int16)  # (B, longest, 16)
        frame = torch.arange(longest, device=device)[None]
        real = frame < torch.from_numpy(frames[rows]).to(device)[:, None]
        codes[(begin + frame)[real]] = found[real]
    return codes.cpu().numpy().astype("<u2")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--codec", type=Path, required=True)
    p.add_argument("--corpus", type=Path, required=True)
    p.add_argument("--shards", default="", help="names, comma-separated; default all")
    p.add_argument("--takes", type=int, default=1)
    p.add_argument("--part", default="0/1", help="I/N: every Nth shard, from the Ith")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--batch-frames", type=int, default=8000)
    p.add_argument("--verify", type=int, default=16, help="utterances of the first shard to encode alone too")
    a = p.parse_args()
    # Codes are made in true float32, so that they are those that the exported encoder finds on a CPU.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    codec = load_codec(a.codec).to(a.device)
    begun, total = time.monotonic(), 0
    used = torch.zeros(GROUPS, 2048, dtype=torch.long)
    equal, checked, differ = 0, 0, 0
    part, parts = (int(x) for x in a.part.split("/"))
    for number, shard in enumerate(read_shards(a.corpus, [x for x in a.shards.split(",") if x])):
        if number % parts != part:
            continue
        starts, lengths = [r["start"] for r in shard.rows], [r["n"] for r in shard.rows]
        if not starts:
            continue
        codes = np.concatenate(
            [
                encode_utterances(codec, shard.pcm, starts, lengths, a.batch_frames, take, a.takes)
                for take in range(a.takes)
            ]
        )
        (a.corpus / f"{shard.name}.codes").write_bytes(codes.tobytes())
        total += sum(lengths)
        for group in range(GROUPS):
            used[group] += torch.bincount(torch.from_numpy(codes[:, group].astype(np.int64)), minlength=2048)
        place = np.concatenate([[0], np.cumsum(frames_of(np.array(lengths), a.takes))])
        chosen = np.random.default_rng(0).permutation(len(starts))[: a.verify] if not checked else []
        for i in chosen:
            one = ([starts[i]], [lengths[i]], a.batch_frames, 0, a.takes)
            alone = encode_utterances(codec, shard.pcm, *one)
            same = alone == codes[place[i] : place[i + 1]]
            equal, checked, differ = equal + int(same.sum()), checked + same.size, differ + (not same.all())
    assert used[0, 0] == 0, "group 0 must not use code 0"
    share = used.float() / used.sum(1, keepdim=True).clamp(min=1)
    perplexity = torch.exp(-(share * (share + 1e-12).log()).sum(1))
    report = {
        "seconds": round(time.monotonic() - begun, 1),
        "hours": round(total / 24000 / 3600, 3),
        "frames": int(used[0].sum()),
        "depth": codec.depth,
        "codes_equal_alone": equal / max(1, checked),
        "utterances_that_differ": differ,
        "codes_used": (used > 0).sum(1).tolist(),
        "perplexity": [round(x) for x in perplexity.tolist()],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
