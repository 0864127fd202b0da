#!/usr/bin/env python3
"""Speaks through the HTTP API, into a file, the speakers or a pipe. Needs nothing but Python.

    scripts/speech_client.py "Good morning." --out morning.mp3
    scripts/speech_client.py "Good morning." --voice hugo --play
    scripts/speech_client.py --out - --format pcm < chapter.txt | aplay -t raw -f S16_LE -r 24000
    scripts/speech_client.py "In my voice." --ref-audio me.wav --out mine.wav

Streams wherever the format allows it (pcm, wav); TTFA and RTF go to stderr.
"""

import argparse
import base64
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

FORMATS = ("wav", "pcm", "flac", "mp3", "opus", "aac")
STREAMED = ("wav", "pcm")
BYTES_PER_SAMPLE = 2
WAV_HEADER_BYTES = 44
# Each reads 16-bit mono samples from its standard input; {rate} is in Hz.
PLAYERS = (
    "ffplay -loglevel error -nodisp -autoexit -f s16le -ar {rate} -ch_layout mono -",
    "paplay --raw --format=s16le --channels=1 --rate={rate}",
    "aplay -q -t raw -f S16_LE -c 1 -r {rate}",
    "play -q -t raw -e signed -b 16 -c 1 -r {rate} -",
)


def main() -> int:
    options = _options()
    text = options.text if options.text is not None else sys.stdin.read()
    try:
        request = urllib.request.Request(
            f"{options.url.rstrip('/')}/v1/audio/speech",
            json.dumps(_body(options, text)).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {options.api_key}"},
        )
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=options.timeout_s) as answer:
            _receive(answer, options, began)
    except urllib.error.HTTPError as error:
        return _fail(_reason(error))
    # HTTPException: a stream that breaks off, which is how a run that fails ends.
    except (OSError, ValueError, http.client.HTTPException) as error:
        return _fail(str(error))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="?", help="what to say; left out, it is read from standard input")
    parser.add_argument("--url", default=os.environ.get("TTS_URL", "http://127.0.0.1:7860"))
    parser.add_argument("--api-key", default=os.environ.get("TTS_API_KEY", "none"))
    parser.add_argument("--voice", help="a name of GET /v1/audio/voices")
    parser.add_argument("--ref-audio", type=Path, help="a clip of a voice to clone")
    parser.add_argument("--ref-text", help="what the clip says; asks for its delivery, too")
    parser.add_argument("--language")
    parser.add_argument("--instructions")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first-chunk-frames", type=int, help="frames of 80 ms")
    parser.add_argument("--format", choices=FORMATS, help="default: by the name of --out, else pcm")
    parser.add_argument("--no-stream", action="store_true", help="wait for the whole clip")
    parser.add_argument("--timeout-s", type=float, default=300.0)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", help="a file, or - for standard output")
    where.add_argument("--play", action="store_true", help="to the speakers")
    options = parser.parse_args()
    ending = Path(options.out or "").suffix.lstrip(".")
    options.format = options.format or (ending if ending in FORMATS else "pcm")
    if options.play and options.format != "pcm":
        parser.error("--play takes no --format")
    return options


def _body(options: argparse.Namespace, text: str) -> dict[str, Any]:
    body = {
        "input": text,
        "voice": options.voice,
        "ref_text": options.ref_text,
        "language": options.language,
        "instructions": options.instructions,
        "speed": options.speed,
        "seed": options.seed,
        "initial_codec_chunk_frames": options.first_chunk_frames,
        "response_format": options.format,
        "stream": options.format in STREAMED and not options.no_stream,
    }
    if options.ref_audio:
        clip = base64.b64encode(options.ref_audio.read_bytes()).decode()
        body["ref_audio"] = f"data:application/octet-stream;base64,{clip}"
    return {key: value for key, value in body.items() if value is not None}


def _receive(answer: Any, options: argparse.Namespace, began: float) -> None:
    rate_hz = int(answer.headers["x-sample-rate"])
    received, first_s = 0, None
    with _sink(options, rate_hz) as sink:
        # read1 gives what has arrived; read would wait for more.
        while data := answer.read1(2**16):
            first_s = first_s or time.monotonic() - began
            sink.write(data)
            sink.flush()
            received += len(data)
        total_s = time.monotonic() - began
    told = (
        f"first byte after {1e3 * (first_s or total_s):.0f} ms, all {received:,} bytes after {total_s:.2f} s"
    )
    if options.format in STREAMED:
        header_bytes = WAV_HEADER_BYTES if options.format == "wav" else 0
        audio_s = (received - header_bytes) / BYTES_PER_SAMPLE / rate_hz
        told = (
            f"TTFA {1e3 * (first_s or total_s):.0f} ms, RTF {total_s / audio_s:.2f}, "
            f"{audio_s:.2f} s of audio in {total_s:.2f} s"
        )
    print(f"{told}, seed {answer.headers['x-seed']}", file=sys.stderr)
    if options.format == "wav" and options.out not in (None, "-"):
        _tell_length(Path(options.out), received)


@contextmanager
def _sink(options: argparse.Namespace, rate_hz: int) -> Iterator[BinaryIO]:
    if options.out == "-":
        yield sys.stdout.buffer
    elif options.out:
        with Path(options.out).open("wb") as file:
            yield file
    else:
        command = next((line for line in PLAYERS if shutil.which(line.split()[0])), None)
        if command is None:
            names = ", ".join(line.split()[0] for line in PLAYERS)
            raise OSError(f"There is no player: install one of {names}, or use --out.")
        player = subprocess.Popen(command.format(rate=rate_hz).split(), stdin=subprocess.PIPE)
        assert player.stdin is not None
        try:
            yield player.stdin  # type: ignore[misc]
        finally:
            player.stdin.close()
            player.wait()


def _tell_length(path: Path, size_bytes: int) -> None:
    """Puts the sizes into a WAV that was streamed without knowing them."""
    with path.open("r+b") as file:
        for position, size in ((4, size_bytes - 8), (40, size_bytes - WAV_HEADER_BYTES)):
            file.seek(position)
            if file.read(4) == b"\xff\xff\xff\xff":
                file.seek(position)
                file.write(size.to_bytes(4, "little"))


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        told = json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        told = error.reason
    again = error.headers.get("Retry-After")
    return f"{told} (status {error.code}{f', again in {again} s' if again else ''})"


def _fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
