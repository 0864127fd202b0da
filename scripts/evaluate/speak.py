"""Speaks the evaluation sentences through the real engine, with its default sampling, and times it.

    .venv/bin/python scripts/evaluate/speak.py --model CHECKPOINT --out spoken
    .venv/bin/python scripts/evaluate/speak.py --model CHECKPOINT --out spoken --clones clips/

Every preset voice speaks every sentence, and each clip of --clones the first of them; that is a folder with
a clips.jsonl of rows {"file", "text", "voice"}, text being the transcript. Writes a wav a run and, as a row
of OUT/clips.jsonl, how the run went; runs that are listed there already are not made again. One run at a
time, seeded by its sentence. Runs in the product's venv; score.py judges what it wrote.
"""

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backend.contract import Phase, ReferenceClip, SpeechRequest, Task
from backend.engine import OmniSpeechEngine
from backend.reference_audio import load_reference_clip
from backend.settings import Settings
from backend.voices import load_preset_voices
from scripts.evaluate.clips import read_rows

logger = logging.getLogger("speak")

SENTENCES = Path(__file__).resolve().parents[1] / "train" / "evaluation_sentences.txt"
START_TIMEOUT_S = 600


@dataclass(frozen=True)
class Voice:
    """A voice to clone; `kind` is "preset" or "clone"."""

    name: str
    kind: str
    clip: ReferenceClip
    transcript: str
    sentences: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of a checkpoint; none is the bundled one")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="one a line")
    parser.add_argument("--count", type=int, default=1000, help="sentences of a preset voice, at most")
    parser.add_argument("--presets", nargs="*", help="names of preset voices; default all, none with no name")
    parser.add_argument("--clones", type=Path, help="folder of clips of further voices")
    parser.add_argument("--clone-voices", nargs="*", help="which of them; default all")
    parser.add_argument("--clone-count", type=int, default=20, help="sentences of a cloned voice, at most")
    parser.add_argument("--in-context", action="store_true", help="clone in context, not by x-vector alone")
    parser.add_argument("--stage-config", help="profile or file, as for app.py")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logger.setLevel(logging.INFO)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

    options.out.mkdir(parents=True, exist_ok=True)
    voices = [
        *preset_voices(options.presets, options.count),
        *cloned_voices(options.clones, options.clone_voices, options.clone_count),
    ]
    texts = options.sentences.read_text(encoding="utf-8").splitlines()
    chosen = {"model": options.model, "stage_config": options.stage_config}
    engine = OmniSpeechEngine(
        Settings(**{name: value for name, value in chosen.items() if value}, _cli_parse_args=False)
    )
    engine.start()
    try:
        wait_until_ready(engine)
        asyncio.run(speak_all(engine, voices, texts, not options.in_context, options.out))
    finally:
        engine.shutdown()


def preset_voices(names: list[str] | None, sentences: int) -> Iterator[Voice]:
    for preset in load_preset_voices():
        if names is None or preset.name in names:
            clip = load_reference_clip(preset.audio_path)
            yield Voice(preset.name, "preset", clip, preset.transcript, sentences)


def cloned_voices(folder: Path | None, names: list[str] | None, sentences: int) -> Iterator[Voice]:
    for row in read_rows(folder / "clips.jsonl") if folder else []:
        if names is None or row["voice"] in names:
            clip = load_reference_clip(folder / row["file"])
            yield Voice(row["voice"], "clone", clip, row["text"], sentences)


def wait_until_ready(engine: OmniSpeechEngine) -> None:
    started = time.monotonic()
    while engine.status.phase in (Phase.LOADING, Phase.WARMING):
        if time.monotonic() - started > START_TIMEOUT_S:
            break
        time.sleep(0.1)
    if engine.status.phase is not Phase.READY:
        raise SystemExit(f"The engine is not ready: {engine.status.detail}.")
    logger.info("ready after %.0f s", time.monotonic() - started)


async def speak_all(
    engine: OmniSpeechEngine, voices: list[Voice], texts: list[str], x_vector_only: bool, out: Path
) -> None:
    listing = out / "clips.jsonl"
    done = {row["file"] for row in read_rows(listing)} if listing.exists() else set()
    for voice in voices:
        rows: list[dict[str, Any]] = []
        for number, text in enumerate(texts[: voice.sentences]):
            file = f"{voice.kind}-{voice.name}-{number:02d}.wav"
            if file in done:
                continue
            request = SpeechRequest(
                text,
                Task.VOICE_CLONE,
                reference=voice.clip,
                transcript=voice.transcript,
                x_vector_only=x_vector_only,
                seed=number,
            )
            row = {"file": file, "text": text, "voice": voice.name, "kind": voice.kind}
            row |= await speak(engine, request, out / file)
            with listing.open("a", encoding="utf-8") as rows_file:
                rows_file.write(json.dumps(row, ensure_ascii=False) + "\n")
            rows.append(row)
        if rows:
            logger.info(
                "%s %s: %d runs, %d ended by themselves, RTF %.2f, TTFA %.0f ms (medians)",
                voice.kind, voice.name, len(rows), sum(row["finish_reason"] == "stop" for row in rows),
                statistics.median(row["rtf"] or 0 for row in rows),
                1000 * statistics.median(row["ttfa_s"] or 0 for row in rows),
            )  # fmt: skip


async def speak(engine: OmniSpeechEngine, request: SpeechRequest, file: Path) -> dict[str, Any]:
    """One run, written to `file`; returns what it measured. Raises SpeechError."""
    run = engine.synthesize(request)
    chunks = [chunk async for chunk in run]
    report = run.report
    assert report is not None
    rate_hz = chunks[0].sample_rate_hz if chunks else 24000
    pcm = np.concatenate([chunk.pcm for chunk in chunks]) if chunks else np.zeros(0, np.int16)
    soundfile.write(file, pcm, rate_hz, subtype="PCM_16")
    return {
        "seed": report.seed,
        "mode": report.mode,
        "x_vector_only": request.x_vector_only,
        "finish_reason": report.finish_reason.value,
        "frames": report.frames,
        "audio_s": round(report.audio_s, 3),
        "ttfa_s": report.ttfa_s and round(report.ttfa_s, 4),
        "total_s": round(report.total_s, 3),
        "rtf": report.rtf and round(report.rtf, 3),
        "chunk_samples": [len(chunk.pcm) for chunk in chunks],
        "chunk_elapsed_s": [round(chunk.elapsed_s, 4) for chunk in chunks],
    }


if __name__ == "__main__":
    main()
