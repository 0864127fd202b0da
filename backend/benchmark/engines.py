"""The whole engine on a checkpoint, with our talker or upstream's, at several concurrencies.

A process of its own for each (`python -m backend.benchmark.engines`), since a process registers one
talker for good; its report is the last line it prints.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from backend.contract import Mode, Phase, RunReport, SpeechRequest, Task

TALKERS = ("upstream", "ours")
# Without our entry point for the talker vLLM-Omni keeps its own; the CPU platform stays.
_UPSTREAM_PLUGINS = "qwen3_tts_demo_cpu"
TEXT = "The engine speaks this sentence over and over, and every time it should begin at once. "
START_TIMEOUT_S = 900
WARM_RUNS = 1


def measure_engine(
    folder: Path, talker: str, concurrency: list[int], rounds: int, stage_config: str | None
) -> list[dict[str, Any]]:
    """One row for each concurrency (and mode, of ours on a GPU). Raises CalledProcessError."""
    command = [sys.executable, "-m", "backend.benchmark.engines", str(folder)]
    command += ["--rounds", str(rounds), "--concurrency", *map(str, concurrency)]
    if stage_config is not None:
        command += ["--stage-config", stage_config]
    environment = dict(os.environ)
    if talker == "upstream":
        environment["VLLM_PLUGINS"] = _UPSTREAM_PLUGINS
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return [{"talker": talker, **row} for row in rows]


def _measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    from backend.engine import OmniSpeechEngine
    from backend.settings import load_settings

    flags = ["--model", str(options.folder), "--queue-size", str(max(options.concurrency))]
    if options.stage_config is not None:
        flags += ["--stage-config", options.stage_config]
    engine = OmniSpeechEngine(load_settings(flags))
    started = time.monotonic()
    engine.start()
    try:
        while engine.status.phase in (Phase.LOADING, Phase.WARMING):
            if time.monotonic() - started > START_TIMEOUT_S:
                break
            time.sleep(0.2)
        if engine.status.phase is not Phase.READY:
            raise SystemExit(f"The engine did not become ready: {engine.status.detail}")
        return asyncio.run(_use(engine, options.concurrency, options.rounds))
    finally:
        engine.shutdown()


async def _use(engine: Any, concurrency: list[int], rounds: int) -> list[dict[str, Any]]:
    capabilities = engine.capabilities
    request = _request(capabilities)
    modes = [Mode.EAGER] if capabilities.graph_unavailable else [Mode.GRAPH, Mode.EAGER]
    # Upstream's talker notes nothing, so that nothing is known of its mode either.
    if os.environ.get("VLLM_PLUGINS"):
        modes = [Mode.GRAPH]
    rows = []
    for mode in modes:
        # Eager only shows what a graph is worth; one user is enough for that.
        for together in concurrency if mode is modes[0] else concurrency[:1]:
            asked = [SpeechRequest(**{**vars(request), "seed": i, "mode": mode}) for i in range(together)]
            for _ in range(WARM_RUNS):
                await _all(engine, asked)
            began = time.monotonic()
            reports = [report for _ in range(rounds) for report in await _all(engine, asked)]
            seconds = time.monotonic() - began
            rows.append({"concurrency": together, **_figures(reports, seconds)})
    return rows


async def _all(engine: Any, requests: list[SpeechRequest]) -> list[RunReport]:
    async def one(request: SpeechRequest) -> RunReport:
        run = engine.synthesize(request)
        async for _ in run:
            pass
        assert run.report is not None
        return run.report

    return list(await asyncio.gather(*(one(request) for request in requests)))


def _request(capabilities: Any) -> SpeechRequest:
    task: Task = capabilities.tasks[0]
    if task is Task.NAMED_SPEAKER:
        return SpeechRequest(2 * TEXT, task, speaker=capabilities.speakers[0])
    if task is Task.VOICE_DESIGN:
        return SpeechRequest(2 * TEXT, task, instruction="A calm voice.")
    from backend.reference_audio import load_reference_clip
    from backend.voices import load_preset_voices

    clip = load_reference_clip(load_preset_voices()[0].audio_path)
    return SpeechRequest(2 * TEXT, task, reference=clip, x_vector_only=True)


def _figures(reports: list[RunReport], seconds: float) -> dict[str, Any]:
    stats = [report.frame_stats for report in reports if report.frame_stats is not None]

    def median(values: list[float | None], digits: int) -> float | None:
        known = [value for value in values if value is not None]
        return round(statistics.median(known), digits) if known else None

    return {
        "mode": reports[0].mode if stats else "its own",
        "runs": len(reports),
        "ttfa_ms": median([1e3 * report.ttfa_s for report in reports if report.ttfa_s is not None], 1),
        "rtf": median([report.rtf for report in reports], 4),
        "audio_s_per_s": round(sum(report.audio_s for report in reports) / seconds, 2),
        "audio_s": median([report.audio_s for report in reports], 2),
        "predictor_ms": median([s.predictor_ms for s in stats], 3),
        "talker_ms": median([s.talker_ms for s in stats], 3),
        "fallbacks": sum(s.fallbacks for s in stats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stage-config")
    rows = _measure(parser.parse_args())
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
