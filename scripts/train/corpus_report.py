"""Checks every row of a corpus and tells what it holds.

    python -m scripts.train.corpus_report corpus

Fails when a row breaks the rules of corpus.py, clips, or has a voice or sentence that is held out.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from scripts.train.corpus import (
    LONGEST_S,
    SAMPLE_RATE_HZ,
    SHORTEST_S,
    Row,
    Samples,
    frame_levels_db,
    read_rows,
    shards,
)
from scripts.train.engines import HELD_OUT
from scripts.train.texts import bare, evaluation_sentences


def faults(row: Row, samples: Samples, held_out: set[str]) -> list[str]:
    """What is wrong with one utterance, in words; ``samples`` in -1..1."""
    found = []
    if len(row["durations"]) != len(row["phones"]) or min(row["durations"]) < 0:
        found.append("not one duration a phone")
    if sum(row["durations"]) != row["n"] or len(samples) != row["n"]:
        found.append("durations do not sum to the samples")
    if not SHORTEST_S <= row["n"] / SAMPLE_RATE_HZ <= LONGEST_S:
        found.append("too short or too long")
    if np.abs(samples).max() > 0.99:
        found.append("clips")
    if set(row["voice"].split("+")) & set(HELD_OUT):
        found.append("voice is held out")
    if bare(row["text"]) in held_out:
        found.append("sentence is held out")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    args = parser.parse_args()
    held_out = {bare(text) for text in evaluation_sentences()}
    seconds: dict[str, list[float]] = defaultdict(list)
    levels: dict[str, list[float]] = defaultdict(list)
    words: set[str] = set()
    sentences: set[str] = set()
    broken = 0
    for shard in shards(args.corpus):
        pcm = np.memmap(shard, "<i2", "r")
        for row in read_rows(shard):
            samples = pcm[row["start"] : row["start"] + row["n"]].astype(np.float32) / np.float32(32768)
            if found := faults(row, samples, held_out):
                broken += 1
                print(shard.name, row["start"], row["voice"], row["text"], found)
                continue
            frames = frame_levels_db(samples)
            speaking = frames[frames > frames.max() - 30]
            levels[row["voice"]].append(10 * np.log10(np.mean(10 ** (speaking / 10))))
            seconds[row["voice"]].append(row["n"] / SAMPLE_RATE_HZ)
            words |= set(bare(row["text"]).split())
            sentences.add(bare(row["text"]))
    print("| voice | minutes | utterances | mean s | level dBFS |\n|---|---|---|---|---|")
    for voice, lengths in sorted(seconds.items(), key=lambda item: -sum(item[1])):
        minutes, mean_s, level = sum(lengths) / 60, np.mean(lengths), np.mean(levels[voice])
        print(f"| {voice} | {minutes:.1f} | {len(lengths)} | {mean_s:.1f} | {level:.1f} |")
    every = [length for lengths in seconds.values() for length in lengths]
    print(f"{sum(every) / 3600:.2f} h, {len(every)} utterances of {min(every):.2f} to {max(every):.2f} s")
    print(f"{len(sentences)} different sentences, {len(words)} different words, {broken} broken utterances")
    raise SystemExit(broken > 0)


if __name__ == "__main__":
    main()
