"""Word error rate of a folder of clips: Whisper listens, the texts are compared.

    python scripts/evaluate/wer.py FOLDER                       # rows in FOLDER/clips.jsonl
    python scripts/evaluate/wer.py FOLDER TEXTS.jsonl --model tiny.en --out wer.json

A row is {"file": "a.wav", "text": "What it should say.", "voice": "heart"}; files are relative to
FOLDER, at any sample rate. Prints a table by voice and the worst clips. Runs in the evaluation venv.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evaluate.clips import Clip, by_voice, ratio_interval, read_clips
from scripts.evaluate.recogniser import MODELS, transcribe
from scripts.evaluate.word_errors import Errors, errors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path, nargs="?", help="JSONL; default FOLDER/clips.jsonl")
    parser.add_argument("--model", choices=MODELS, default="base", help="tiny.en: twice as fast, coarser")
    parser.add_argument("--by", default="voice", help="key of a row to make the table by")
    parser.add_argument("--worst", type=int, default=10, help="how many of the worst clips to print")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="clips at once")
    parser.add_argument("--out", type=Path, help="also write all figures and transcripts as JSON")
    options = parser.parse_args()

    clips = read_clips(options.folder, options.texts or options.folder / "clips.jsonl", options.by)
    started = time.monotonic()
    heard = transcribe([clip.path for clip in clips], options.model, options.workers)
    judged = [errors(clip.text, text) for clip, text in zip(clips, heard, strict=True)]
    table = summarise(clips, judged)
    print(f"Whisper {options.model}, {len(clips)} clips in {time.monotonic() - started:.0f} s")
    print_table(table)
    print_worst(clips, judged, options.worst)
    if options.out:
        rows = [
            {"file": clip.path.name, "voice": clip.voice, "text": clip.text, "transcript": text} | vars(found)
            for clip, text, found in zip(clips, heard, judged, strict=True)
        ]
        report = {"model": options.model, "voices": table, "clips": rows}
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def summarise(clips: Sequence[Clip], judged: Sequence[Errors]) -> dict[str, dict[str, Any]]:
    """By voice: WER and CER with the 95 % interval of the WER, all in per cent of the reference."""
    table: dict[str, dict[str, Any]] = {}
    for voice, indices in by_voice(clips).items():
        found = [judged[index] for index in indices]
        wer, low, high = ratio_interval([one.word_errors for one in found], [one.words for one in found])
        cer = sum(one.character_errors for one in found) / sum(one.characters for one in found)
        table[voice] = {
            "clips": len(found),
            "words": sum(one.words for one in found),
            "wer_percent": round(100 * wer, 2),
            "wer_interval_percent": [round(100 * low, 2), round(100 * high, 2)],
            "cer_percent": round(100 * cer, 2),
            "clean_clips_percent": round(100 * sum(not one.word_errors for one in found) / len(found), 1),
        }
    return table


def print_table(table: dict[str, dict[str, Any]]) -> None:
    print(f"{'voice':<24}{'clips':>6}{'words':>7}{'WER %':>8}{'95 % interval':>17}{'CER %':>8}{'clean %':>9}")
    for voice, row in table.items():
        low, high = row["wer_interval_percent"]
        print(
            f"{voice:<24}{row['clips']:>6}{row['words']:>7}{row['wer_percent']:>8.1f}"
            f"{f'{low:.1f} to {high:.1f}':>17}{row['cer_percent']:>8.1f}{row['clean_clips_percent']:>9.0f}"
        )


def print_worst(clips: Sequence[Clip], judged: Sequence[Errors], count: int) -> None:
    worst = sorted(range(len(clips)), key=lambda index: -judged[index].word_errors / judged[index].words)
    for index in worst[:count]:
        found = judged[index]
        if found.word_errors:
            print(f"\n{clips[index].path.name} ({clips[index].voice}): {found.word_errors} of {found.words}")
            print(f"  said  {found.reference}\n  heard {found.heard}")


if __name__ == "__main__":
    main()
