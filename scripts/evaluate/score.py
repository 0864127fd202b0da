"""Judges what speak.py wrote, beside the teacher's speech of the same sentences.

    .venv-evaluate/bin/python scripts/evaluate/score.py spoken --teacher teacher --clones clips/

Words, opinion scores, durations, ends, likeness to the voices, joints of chunks, speed. Writes
spoken/scores.json and spoken/scores.md. What the models said of each file is kept beside it
(judgements.json in either folder), so that a second run judges new files only. Runs in the evaluation venv.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evaluate import clicks, speakers
from scripts.evaluate.clips import (
    Clip,
    mean_interval,
    ratio_interval,
    read_clips,
    read_rows,
)
from scripts.evaluate.quality import rate_all
from scripts.evaluate.recogniser import transcribe
from scripts.evaluate.report import markdown
from scripts.evaluate.word_errors import errors

# The voice of the teacher that a preset voice's clip is of; another voice's name is the teacher's own.
TEACHER_VOICES = {
    "clara": "heart",
    "hugo": "heart_x0.8",
    "nora": "heart_x0.88",
    "pia": "heart_x1.15",
    "emma": "bf_emma",
    "michael": "am_michael",
    "george": "bm_george",
}
DURATION_WINDOW = (0.7, 1.4)
# Of each preset voice, how many of the teacher's clips stand for it.
REFERENCE_CLIPS = 10

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A row of speak.py, and the teacher's row of the same sentence in the same voice, if there is one."""

    row: Row
    teacher: Row | None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--teacher", type=Path, required=True, help="folder that teacher.py wrote")
    parser.add_argument("--clones", type=Path, help="the folder that speak.py had as --clones")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="clips recognised at once")
    options = parser.parse_args()

    runs = pair(read_rows(options.folder / "clips.jsonl"), read_rows(options.teacher / "clips.jsonl"))
    judge(options.folder, [run.row for run in runs], options.workers)
    judge(options.teacher, [run.teacher for run in runs if run.teacher], options.workers)
    scores = {
        "runs": len(runs),
        "groups": {name: summarise(group) for name, group in groups(runs).items()},
        "joints": joints(options.folder, runs),
        "presets_apart": presets_apart(options.folder, options.teacher, runs),
        "clones_near": clones_near(options.folder, options.clones, runs),
        "worst": worst(runs, 12),
    }
    (options.folder / "scores.json").write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n")
    table = markdown(scores)
    (options.folder / "scores.md").write_text(table)
    print(table)


def pair(made: Sequence[Row], taught: Sequence[Row]) -> list[Run]:
    by_sentence = {(row["voice"], row["text"]): row for row in taught}
    return [
        Run(row, by_sentence.get((TEACHER_VOICES.get(row["voice"], row["voice"]), row["text"])))
        for row in made
    ]


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Each voice by itself, then all presets and all clones."""
    found: dict[str, list[Run]] = {}
    for key in (lambda row: f"{row['kind']} {row['voice']}", lambda row: f"all {row['kind']}s"):
        for run in runs:
            found.setdefault(key(run.row), []).append(run)
    return found


def judge(folder: Path, rows: Sequence[Row], workers: int) -> None:
    """Adds to each row what Whisper heard, its errors, its opinion scores and its duration."""
    store = folder / "judgements.json"
    known: dict[str, Row] = json.loads(store.read_text()) if store.exists() else {}
    # A file that was written again since is another file.
    keys = {row["file"]: f"{row['file']} {(folder / row['file']).stat().st_mtime_ns}" for row in rows}
    new = [file for file, key in keys.items() if key not in known]
    paths = [folder / file for file in new]
    if new:
        judged = zip(new, transcribe(paths, workers=workers), rate_all(paths, workers), strict=True)
        for file, text, rating in judged:
            duration_s = soundfile.info(folder / file).duration
            known[keys[file]] = {"transcript": text, "duration_s": duration_s} | rating
    store.write_text(json.dumps(known, indent=0) + "\n")
    for row in rows:
        row |= known[keys[row["file"]]]
        row |= vars(errors(row["text"], row["transcript"]))


def summarise(runs: Sequence[Run]) -> Row:
    """Figures of one group; intervals are [value, low, high] at 95 %. None where no teacher has the voice."""
    rows, taught = [run.row for run in runs], [run.teacher for run in runs if run.teacher]
    ended = [row["finish_reason"] == "stop" for row in rows]
    ratios = [run.row["duration_s"] / run.teacher["duration_s"] for run in runs if run.teacher]
    low, high = DURATION_WINDOW
    good_ends = [
        run.row["finish_reason"] == "stop"
        and low <= run.row["duration_s"] / run.teacher["duration_s"] <= high
        for run in runs
        if run.teacher
    ]
    return {
        "runs": len(rows),
        "wer_percent": wer_percent(rows),
        "teacher_wer_percent": wer_percent(taught),
        "cer_percent": _percent(
            sum(row["character_errors"] for row in rows), sum(row["characters"] for row in rows)
        ),
        "ended_percent": _percent(sum(ended), len(rows)),
        "ended_in_time_percent": _percent(sum(good_ends), len(good_ends)),
        "duration_ratio": [round(float(q), 2) for q in np.percentile(ratios, [5, 50, 95])]
        if ratios
        else None,
        "dnsmos": _mean(rows, "dnsmos"),
        "teacher_dnsmos": _mean(taught, "dnsmos"),
        "distillmos": _mean(rows, "distillmos"),
        "teacher_distillmos": _mean(taught, "distillmos"),
        "ttfa_ms": _median_and_95th(rows, "ttfa_s", 1000),
        "rtf": _median_and_95th(rows, "rtf", 1),
    }


def wer_percent(rows: Sequence[Row]) -> list[float] | None:
    if not rows:
        return None
    interval = ratio_interval([row["word_errors"] for row in rows], [row["words"] for row in rows])
    return [round(100 * value, 2) for value in interval]


def joints(folder: Path, runs: Sequence[Run]) -> Row:
    return clicks.summarise(
        clicks.measure_file(folder / run.row["file"], run.row["chunk_samples"])
        for run in runs
        if run.row["frames"]
    )


def presets_apart(folder: Path, teacher: Path, runs: Sequence[Run]) -> Row | None:
    """Preset voices' clips against the teacher's last clips of the same voices."""
    presets = [run for run in runs if run.row["kind"] == "preset" and run.teacher]
    if not presets:
        return None
    made = [_clip(folder, run.row, run.teacher["voice"]) for run in presets if run.row["frames"]]
    wanted = {clip.voice for clip in made}
    references: dict[str, list[Clip]] = {}
    for clip in read_clips(teacher, teacher / "clips.jsonl"):
        if clip.voice in wanted:
            references.setdefault(clip.voice, []).append(clip)
    return speakers.compare(made, [clip for each in references.values() for clip in each[-REFERENCE_CLIPS:]])


def clones_near(folder: Path, clones: Path | None, runs: Sequence[Run]) -> Row | None:
    """Cloned voices' clips against all clips of the folder, those that were cloned and others."""
    made = [_clip(folder, run.row) for run in runs if run.row["kind"] == "clone" and run.row["frames"]]
    if not made or clones is None:
        return None
    return speakers.compare(made, read_clips(clones, clones / "clips.jsonl"))


def worst(runs: Sequence[Run], count: int) -> list[Row]:
    rows = sorted((run.row for run in runs), key=lambda row: -row["word_errors"] / row["words"])
    return [{key: row[key] for key in ("file", "reference", "heard")} for row in rows[:count]]


def _clip(folder: Path, row: Row, voice: str | None = None) -> Clip:
    return Clip(folder / row["file"], row["text"], voice or row["voice"])


def _mean(rows: Sequence[Row], key: str) -> list[float] | None:
    return [round(value, 3) for value in mean_interval(row[key] for row in rows)] if rows else None


def _median_and_95th(rows: Sequence[Row], key: str, unit: float) -> list[float] | None:
    values = [unit * row[key] for row in rows if row[key] is not None]
    return [round(float(value), 3) for value in np.percentile(values, [50, 95])] if values else None


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 1) if whole else None


if __name__ == "__main__":
    main()
