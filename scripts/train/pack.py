"""Packs a corpus for carrying (Opus, about 30 kbit/s, in parts of limited size) and unpacks it again.

    python -m scripts.train.pack pack corpus packed --part-mb 50
    python -m scripts.train.pack unpack packed/part-00 corpus

``pack`` takes the shards that no part holds yet, so it may be run again while the corpus grows. A packed
shard is NAME.opus + NAME.jsonl; ``unpack`` makes NAME.pcm of it and copies the rows.
"""

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import soundfile

from scripts.train.corpus import SAMPLE_RATE_HZ, read_rows, shards

# libsndfile maps 0..1 to 256..6 kbit/s a channel.
OPUS_COMPRESSION_LEVEL = 0.9


def encode(pcm: Path, opus: Path) -> None:
    """Write the samples of a .pcm as an Opus file beside a copy of its rows."""
    samples = np.fromfile(pcm, "<i2")
    level = OPUS_COMPRESSION_LEVEL
    soundfile.write(opus, samples, SAMPLE_RATE_HZ, format="OGG", subtype="OPUS", compression_level=level)
    shutil.copyfile(pcm.with_suffix(".jsonl"), opus.with_suffix(".jsonl"))


def decode(opus: Path, folder: Path) -> int:
    """Write NAME.pcm and NAME.jsonl to ``folder``; gives the number of samples. Raises ValueError."""
    samples, rate_hz = soundfile.read(opus, dtype="int16")
    last = read_rows(opus)[-1]
    n_samples = int(last["start"]) + int(last["n"])
    if rate_hz != SAMPLE_RATE_HZ or len(samples) < n_samples:
        raise ValueError(f"{opus}: {len(samples)} samples at {rate_hz} Hz, the rows speak of {n_samples}")
    pcm = folder / f"{opus.stem}.pcm"
    samples[:n_samples].astype("<i2").tofile(pcm)
    shutil.copyfile(opus.with_suffix(".jsonl"), pcm.with_suffix(".jsonl"))
    return n_samples


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def pack(corpus: Path, packed: Path, part_bytes: float) -> list[Path]:
    """Encode the shards that ``packed`` lacks into its parts of at most ``part_bytes``; gives the parts."""
    packed.mkdir(parents=True, exist_ok=True)
    parts = sorted(packed.glob("part-*"))
    done = {path.stem for part in parts for path in part.glob("*.opus")}
    waiting = packed / "waiting"
    waiting.mkdir(exist_ok=True)
    for pcm in shards(corpus):
        if pcm.stem in done:
            continue
        opus = waiting / f"{pcm.stem}.opus"
        encode(pcm, opus)
        files = (opus, opus.with_suffix(".jsonl"))
        if not parts or size_bytes(parts[-1]) + sum(path.stat().st_size for path in files) > part_bytes:
            parts.append(packed / f"part-{len(parts):02d}")
            parts[-1].mkdir()
        for path in files:
            path.rename(parts[-1] / path.name)
    waiting.rmdir()
    return parts


def unpack(folders: Iterable[Path], corpus: Path, run: Callable[..., Iterable[int]] = map) -> int:
    """Decode every shard of the folders into ``corpus``; ``run`` maps over them. Gives the samples in all."""
    corpus.mkdir(parents=True, exist_ok=True)
    packed = [path for folder in folders for path in shards(folder, "opus")]
    return sum(run(decode, packed, [corpus] * len(packed)))


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("pack")
    command.add_argument("corpus", type=Path)
    command.add_argument("packed", type=Path)
    command.add_argument("--part-mb", type=float, default=50.0)
    command = commands.add_parser("unpack")
    command.add_argument("parts", type=Path, nargs="+")
    command.add_argument("corpus", type=Path)
    command.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    if args.command == "pack":
        for part in pack(args.corpus, args.packed, args.part_mb * 1e6):
            print(part, round(size_bytes(part) / 1e6, 2), "MB")
    else:
        with ProcessPoolExecutor(args.processes) as processes:
            n_samples = unpack(args.parts, args.corpus, processes.map)
        print(f"{n_samples / SAMPLE_RATE_HZ / 60:.1f} min of speech in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
