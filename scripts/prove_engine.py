"""Runs the whole engine on a random-weight checkpoint and checks what a user relies on.

    python scripts/prove_engine.py --size 0.6b --variant base
    python scripts/prove_engine.py --size 1.7b --variant custom_voice --out report.json

Starts it, streams, clones or names a speaker, speaks ten times, four at once, stops
mid-run, shuts down, and checks that processes, shared memory and card memory are gone.
Prints a report and exits with 1 if any check failed. Runs on whatever device vLLM is for.
"""

import argparse
import asyncio
import json
import logging
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from backend.checkpoint import SIZES, VARIANTS
from backend.contract import AudioChunk, Phase, RunReport, SpeechRequest, Task
from backend.engine import OmniSpeechEngine
from backend.reference_audio import load_reference_clip
from backend.settings import Settings
from backend.voices import load_preset_voices
from tests.engine.processes import descendants, shared_memory

TEXT = "The engine speaks this sentence ten times over, and every time it should begin at once."
LONG_TEXT = TEXT * 6
START_TIMEOUT_S = 900
CARD_MEMORY_SLACK_MIB = 64


class Proof:
    """Collects figures and failed checks."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.failures: list[str] = []

    def check(self, holds: bool, claim: str) -> None:
        print(f"{'ok  ' if holds else 'FAIL'} {claim}", flush=True)
        if not holds:
            self.failures.append(claim)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--variant", choices=VARIANTS, default="base")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where weights are made")
    parser.add_argument("--stage-config", help="profile or file, as for app.py")
    parser.add_argument("--out", type=Path, help="also write the report as JSON")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    proof = Proof()
    folder = Path(tempfile.mkdtemp(prefix="prove-engine-"))
    try:
        # In a process of its own: this one must not touch the card that it later finds given back.
        maker = [sys.executable, Path(__file__).with_name("make_checkpoint.py"), "--out", folder]
        choice = ["--size", options.size, "--variant", options.variant, "--device", options.device]
        subprocess.run([*map(str, maker), *choice], check=True)
        _prove(proof, folder, options.stage_config)
    finally:
        shutil.rmtree(folder)
    report = {**vars(options), "figures": proof.figures, "failures": proof.failures}
    print(json.dumps(report, indent=2, default=str))
    if options.out:
        options.out.write_text(json.dumps(report, indent=2, default=str) + "\n")
    return 1 if proof.failures else 0


def _prove(proof: Proof, folder: Path, stage_config: str | None) -> None:
    card_before, shm_before = _card_memory_mib(), shared_memory()
    settings = {"model": str(folder)} | ({"stage_config": stage_config} if stage_config else {})
    engine = OmniSpeechEngine(Settings(**settings, _cli_parse_args=False))
    started = time.monotonic()
    engine.start()
    while engine.status.phase in (Phase.LOADING, Phase.WARMING):
        if time.monotonic() - started > START_TIMEOUT_S:
            break
        time.sleep(0.1)
    proof.figures["start_s"] = round(time.monotonic() - started, 1)
    proof.check(engine.status.phase is Phase.READY, f"ready ({engine.status.detail})")
    try:
        if engine.status.phase is Phase.READY:
            asyncio.run(_use(proof, engine))
    finally:
        stopping = time.monotonic()
        engine.shutdown()
        proof.figures["shutdown_s"] = round(time.monotonic() - stopping, 1)
    proof.check(proof.figures["shutdown_s"] <= 10, "shut down within 10 s")
    left = descendants()
    proof.check(not left, f"no process left behind {left}")
    proof.check(shared_memory() <= shm_before, "no shared memory left behind")
    card_after = _card_memory_mib()
    card = proof.figures.setdefault("card_memory_mib", {})
    card |= {"before": card_before, "after": card_after}
    if card_before is not None and card_after is not None:
        proof.check(card_after <= card_before + CARD_MEMORY_SLACK_MIB, "all card memory given back")


async def _use(proof: Proof, engine: OmniSpeechEngine) -> None:
    capabilities = engine.capabilities
    assert capabilities is not None
    proof.figures |= {"device": capabilities.device, "mode": capabilities.mode}
    proof.figures["card_memory_mib"] = {"ready": _card_memory_mib()}
    request = _request(capabilities.tasks[0], TEXT, capabilities.speakers)

    chunks, report = await _speak(engine, request)
    proof.check(len(chunks) > 1, f"streams ({len(chunks)} chunks)")
    proof.check(report.finish_reason.value == "stop", f"ends by itself ({report.frames} frames)")
    samples = sum(len(chunk.pcm) for chunk in chunks)
    proof.check(samples == report.frames * capabilities.samples_per_frame, "whole frames of audio")
    again, _ = await _speak(engine, request)
    proof.check(
        [c.pcm.tobytes() for c in chunks] == [c.pcm.tobytes() for c in again], "same seed, same samples"
    )
    if capabilities.tasks[0] is Task.VOICE_CLONE:
        cloned, _ = await _speak(engine, _request(Task.VOICE_CLONE, TEXT, (), voice=1, in_context=True))
        proof.check(bool(cloned), "clones in context")

    reports = [(await _speak(engine, request))[1] for _ in range(10)]
    proof.figures["ten_runs"] = _timings(reports)
    proof.check(all(report.audio_s for report in reports), "ten runs speak")
    began = time.monotonic()
    four = [report for _, report in await asyncio.gather(*(_speak(engine, request) for _ in range(4)))]
    audio_s = sum(report.audio_s for report in four)
    proof.figures["four_at_once"] = _timings(four) | {
        "audio_s_per_s": round(audio_s / (time.monotonic() - began), 2)
    }
    task = capabilities.tasks[0]
    long_text = LONG_TEXT[: capabilities.max_text_chars[task]]
    await _stop_mid_run(proof, engine, _request(task, long_text, capabilities.speakers))
    _, after = await _speak(engine, request)
    proof.check(after.audio_s > 0, "speaks after a stop")


async def _stop_mid_run(proof: Proof, engine: OmniSpeechEngine, request: SpeechRequest) -> None:
    run = engine.synthesize(request)
    await anext(aiter(run))
    stopping = time.monotonic()
    await run.aclose()
    stop_s = time.monotonic() - stopping
    proof.figures["stop_s"] = round(stop_s, 3)
    proof.check(stop_s < 0.5, "a stop takes less than 0.5 s")
    proof.check(run.report is not None and run.report.finish_reason.value == "aborted", "reported as aborted")
    proof.check(engine.status.running == 0 and engine.requests_in_stages() == 0, "both stages let go of it")


async def _speak(engine: OmniSpeechEngine, request: SpeechRequest) -> tuple[list[AudioChunk], RunReport]:
    run = engine.synthesize(request)
    chunks = [chunk async for chunk in run]
    assert run.report is not None
    return chunks, run.report


def _request(
    task: Task, text: str, speakers: tuple[str, ...], voice: int = 0, in_context: bool = False
) -> SpeechRequest:
    if task is Task.TEXT_ONLY:
        return SpeechRequest(text, task, seed=7)
    if task is not Task.VOICE_CLONE:
        speaker = speakers[0] if speakers else None
        return SpeechRequest(text, task, speaker=speaker, instruction="A calm voice.", seed=7)
    preset = load_preset_voices()[voice]
    return SpeechRequest(
        text,
        task,
        reference=load_reference_clip(preset.audio_path),
        transcript=preset.transcript,
        x_vector_only=not in_context,
        seed=7,
    )


def _timings(reports: list[RunReport]) -> dict[str, Any]:
    ttfa_ms = [1e3 * (report.ttfa_s or 0) for report in reports]
    return {
        "ttfa_ms_median": round(statistics.median(ttfa_ms), 1),
        "ttfa_ms_max": round(max(ttfa_ms), 1),
        "rtf_median": round(statistics.median(report.rtf or 0 for report in reports), 4),
        "audio_s": round(statistics.median(report.audio_s for report in reports), 2),
    }


def _card_memory_mib() -> int | None:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    sys.exit(main())
