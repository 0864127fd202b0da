"""Streams from a running server, many at once and some of them left, and says what it saw.

    python scripts/load_test.py --url http://127.0.0.1:7860 --streams 1 4 8 --requests 200 --pid PID

For each number of streams: TTFA, RTF and order. Every stream must be, to the last bit, what the
same request gives alone, so no voice or text of another is in it; this holds for any checkpoint on
the CPU profile. Then --requests requests, of which --leave-share are left at a random moment;
afterwards nothing may run, and with --pid (the app's) memory and shared memory must be as before.
--save keeps the streams as clips for scripts/evaluate/wer.py and speakers.py, which recognise words and
voices.
Exits with 1 if something is not as it should be.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import wave
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.engine.processes import held_mib, shared_memory

SENTENCES = (
    "The kettle has just boiled.",
    "There is fresh bread on the table.",
    "At nine o'clock the rain stopped.",
    "The harbour turned to silver.",
    "Nobody had seen the letter.",
    "She closed the door behind her.",
    "Two trains leave every morning.",
    "It was colder than last year.",
)
BYTES_PER_SAMPLE = 2
MAX_GROWTH_MIB = 100
RETRY_S = 0.5
# Most of these clips take longer, so who is to leave does.
MAX_STAY_S = 1.0


@dataclass
class Heard:
    data: bytes
    ttfa_s: float
    total_s: float
    rate_hz: int
    retries: int = 0

    @property
    def audio_s(self) -> float:
        return len(self.data) / BYTES_PER_SAMPLE / self.rate_hz


async def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:7860")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--voices", nargs="*", help="names of /v1/audio/voices; default: all of them")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--leave-share", type=float, default=1 / 3)
    parser.add_argument("--at-once", type=int, default=8, help="of --requests")
    parser.add_argument("--pid", type=int, help="the app's process, to watch its memory")
    parser.add_argument("--save", type=Path, help="folder for the streams, as wavs and clips.jsonl")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    headers = {"Authorization": f"Bearer {options.api_key}"}
    wrong: list[str] = []
    async with httpx.AsyncClient(base_url=options.url, headers=headers, timeout=600) as client:
        voices = options.voices or (await client.get("/v1/audio/voices")).json()["voices"]
        wrong += await _compare(client, voices, options.streams, options.save)
        if options.requests:
            wrong += await _soak(client, voices, options)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    return 1 if wrong else 0


async def _compare(
    client: httpx.AsyncClient, voices: list[str], counts: list[int], folder: Path | None
) -> list[str]:
    asked = [_body(voices, number) for number in range(max(counts, default=0))]
    alone = [await _hear(client, body) for body in asked]
    wrong = []
    print("streams  TTFA median/worst    RTF of one  audio s/s  in order  same as alone")
    for count in counts:
        began = time.monotonic()
        # A moment apart, so that who came first is known.
        heard = await asyncio.gather(
            *(_hear(client, body, wait_s=0.02 * number) for number, body in enumerate(asked[:count]))
        )
        total_s = time.monotonic() - began
        same = [each.data == by_itself.data for each, by_itself in zip(heard, alone, strict=False)]
        first_sounds = [each.ttfa_s + 0.02 * number for number, each in enumerate(heard)]
        late = sum(later < earlier - 1.0 for earlier, later in pairwise(first_sounds))
        ttfas_ms = [1e3 * each.ttfa_s for each in heard]
        print(
            f"{count:7} {statistics.median(ttfas_ms):9.0f} / {max(ttfas_ms):.0f} ms"
            f" {statistics.median(each.total_s / each.audio_s for each in heard):13.2f}"
            f" {sum(each.audio_s for each in heard) / total_s:10.2f}"
            f" {'no' if late else 'yes':>9} {sum(same):8} of {count}"
        )
        if folder:
            _save(folder, f"{count}-streams", asked, heard)
        if not all(same):
            wrong.append(f"with {count} streams, {count - sum(same)} were not what they are alone")
        if late:
            wrong.append(f"with {count} streams, {late} were served before earlier ones")
    return wrong


async def _soak(client: httpx.AsyncClient, voices: list[str], options: argparse.Namespace) -> list[str]:
    chance = random.Random(options.seed)
    places = asyncio.Semaphore(options.at_once)
    shared_before = shared_memory()
    memory_mib: list[float] = []
    left = retries = 0

    async def one(number: int, leave_after_s: float | None) -> None:
        nonlocal left, retries
        async with places:
            heard = await _hear(client, _body(voices, number), leave_after_s=leave_after_s)
            left += heard is None
            retries += heard.retries if heard else 0
            if options.pid and number % 20 == 0:
                memory_mib.append(held_mib(options.pid))

    leaving = [
        chance.uniform(0.0, MAX_STAY_S) if chance.random() < options.leave_share else None
        for _ in range(options.requests)
    ]
    began = time.monotonic()
    await asyncio.gather(*(one(number, after_s) for number, after_s in enumerate(leaving)))
    print(
        f"{options.requests} requests in {time.monotonic() - began:.0f} s, {left} of them left, "
        f"{retries} retries after 429"
    )
    await asyncio.sleep(2)  # what aborted runs left is removed after a second
    health = (await client.get("/health")).json()
    print(f"afterwards: {health['phase']}, running {health['running']}, queued {health['queued']}")
    wrong = []
    if (health["phase"], health["running"], health["queued"]) != ("ready", 0, 0):
        wrong.append(f"the engine is {health}")
    if options.pid:
        settled = memory_mib[len(memory_mib) // 2]  # by then memory that was only reserved has been used
        growth_mib = held_mib(options.pid) - settled
        extra = shared_memory() - shared_before
        print(
            f"memory {settled:.0f} MiB, growth {growth_mib:+.0f} MiB; new shared-memory segments {len(extra)}"
        )
        if growth_mib > MAX_GROWTH_MIB:
            wrong.append(f"memory grew by {growth_mib:.0f} MiB")
        if extra:
            wrong.append(f"shared memory is left: {sorted(extra)[:5]}")
    return wrong


def _save(folder: Path, name: str, asked: list[dict[str, Any]], heard: list[Heard]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "clips.jsonl").open("a", encoding="utf-8") as rows:
        for number, (body, each) in enumerate(zip(asked, heard, strict=False)):
            file = f"{name}-{number}.wav"
            with wave.open(str(folder / file), "wb") as clip:
                clip.setnchannels(1)
                clip.setsampwidth(BYTES_PER_SAMPLE)
                clip.setframerate(each.rate_hz)
                clip.writeframes(each.data)
            rows.write(json.dumps({"file": file, "text": body["input"], "voice": body["voice"]}) + "\n")


def _body(voices: list[str], number: int) -> dict[str, Any]:
    return {
        "input": SENTENCES[number % len(SENTENCES)],
        "voice": voices[number % len(voices)],
        "seed": number,
        "response_format": "pcm",
        "stream": True,
    }


async def _hear(
    client: httpx.AsyncClient, body: dict[str, Any], wait_s: float = 0.0, leave_after_s: float | None = None
) -> Any:
    """What was heard; None where the stream was left. Comes back as long as the server is full."""
    await asyncio.sleep(wait_s)
    retries = 0
    began = time.monotonic()
    try:
        async with asyncio.timeout(leave_after_s):
            while True:
                async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
                    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                        retries += 1
                    else:
                        answer.raise_for_status()
                        data, first_s = b"", 0.0
                        async for piece in answer.aiter_raw():
                            first_s = first_s or time.monotonic() - began
                            data += piece
                        total_s = time.monotonic() - began
                        return Heard(data, first_s, total_s, int(answer.headers["x-sample-rate"]), retries)
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        return None


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
