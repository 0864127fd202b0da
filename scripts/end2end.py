"""Speaks a file of sentences without a page or a server: WAV files and a report.

    python scripts/end2end.py sentences.txt --out spoken
    python scripts/end2end.py sentences.txt --out spoken --voice hugo --stream
    python scripts/end2end.py sentences.txt --out spoken --ref-audio me.wav --ref-text "What I say there."

One text a line; empty lines and lines that begin with # are left out. `spoken/0001.wav` is the
first; `spoken/report.json` tells how each went, and the totals.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from backend.contract import Capabilities, Phase, SpeechEngine, SpeechError, SpeechRequest, Task  # noqa: E402
from backend.engine import OmniSpeechEngine  # noqa: E402
from backend.reference_audio import load_reference_clip  # noqa: E402
from backend.settings import Settings  # noqa: E402
from backend.voices import load_preset_voices  # noqa: E402


def main() -> int:
    options = _options()
    texts = [line.strip() for line in options.sentences.read_text(encoding="utf-8").splitlines()]
    texts = [text for text in texts if text and not text.startswith("#")]
    if not texts:
        return _fail(f"There is nothing to say in {options.sentences}.")
    # vLLM tells a start's every step, and on standard output.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    chosen = {"model": options.model, "stage_config": options.stage_config, "device": options.device}
    engine = OmniSpeechEngine(Settings(queue_size=len(texts), _cli_parse_args=False, **chosen))
    began = time.monotonic()
    engine.start()
    try:
        while (phase := engine.status.phase) in (Phase.LOADING, Phase.WARMING):
            time.sleep(0.1)
        if phase is not Phase.READY:
            return _fail(engine.status.detail)
        ready_s = time.monotonic() - began
        capabilities = engine.capabilities
        assert capabilities is not None
        try:
            request = _request(options, capabilities)
        except (SpeechError, OSError) as error:
            return _fail(str(error))
        options.out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        rows = asyncio.run(_speak_all(engine, request, texts, options))
        report = _report(rows, time.monotonic() - began) | {
            "model": capabilities.model, "device": capabilities.device, "ready_s": round(ready_s, 1),
        }  # fmt: skip
    finally:
        engine.shutdown()
    (options.out / "report.json").write_text(json.dumps({**report, "texts": rows}, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    return 0 if report["spoken"] == len(texts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder, made if it is missing")
    parser.add_argument("--model")
    parser.add_argument("--stage-config")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--voice", help="a preset voice, or a speaker of the checkpoint")
    parser.add_argument("--ref-audio", type=Path, help="a clip of a voice to clone")
    parser.add_argument("--ref-text", default="", help="what the clip says; asks for its delivery, too")
    parser.add_argument("--language", default="Auto")
    parser.add_argument("--instructions", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="texts that are spoken at the same time")
    parser.add_argument("--stream", action="store_true", help="decode in chunks, to measure TTFA")
    return parser.parse_args()


def _request(options: argparse.Namespace, capabilities: Capabilities) -> SpeechRequest:
    """All texts' request, without a text."""
    task = capabilities.tasks[0]
    speaker, clip, transcript = None, None, options.ref_text
    if task is Task.NAMED_SPEAKER:
        speaker = options.voice or capabilities.speakers[0]
    elif task is Task.VOICE_CLONE:
        path = options.ref_audio
        if path is None:
            voices = {voice.name: voice for voice in load_preset_voices()}
            if options.voice not in (None, *voices):
                raise SpeechError(f"There is no voice {options.voice!r}; the voices are {', '.join(voices)}.")
            path = voices[options.voice or next(iter(voices))].audio_path
        clip = load_reference_clip(path)
    return SpeechRequest(
        text="",
        task=task,
        language=options.language,
        speaker=speaker,
        reference=clip,
        transcript=transcript if clip else "",
        x_vector_only=clip is not None and not transcript,
        instruction=options.instructions,
        seed=options.seed,
        stream=options.stream,
    )


async def _speak_all(
    engine: SpeechEngine, request: SpeechRequest, texts: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    places = asyncio.Semaphore(options.at_once)

    async def speak(number: int, text: str) -> dict[str, Any]:
        async with places:
            row: dict[str, Any] = {"file": f"{number:04d}.wav", "text": text}
            try:
                run = engine.synthesize(replace(request, text=text))
                chunks = [chunk async for chunk in run]
            except SpeechError as error:
                return row | {"error": str(error)}
            assert run.report is not None
            if not chunks:
                return row | {"error": "no audio"}
            pcm = np.concatenate([chunk.pcm for chunk in chunks])
            await asyncio.to_thread(soundfile.write, options.out / row["file"], pcm, chunks[0].sample_rate_hz)
            return row | asdict(run.report) | {"rtf": run.report.rtf}

    return await asyncio.gather(*(speak(number, text) for number, text in enumerate(texts, start=1)))


def _report(rows: list[dict[str, Any]], total_s: float) -> dict[str, Any]:
    spoken = [row for row in rows if "error" not in row]
    audio_s = sum(row["audio_s"] for row in spoken)
    return {
        "spoken": len(spoken),
        "failed": len(rows) - len(spoken),
        "audio_s": round(audio_s, 2),
        "total_s": round(total_s, 2),
        "audio_s_per_s": round(audio_s / total_s, 2),
        "median_ttfa_ms": round(1e3 * statistics.median(row["ttfa_s"] for row in spoken)) if spoken else None,
        "median_rtf": round(statistics.median(row["rtf"] for row in spoken), 3) if spoken else None,
    }


def _fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
