"""Turns any audio file a person has into a reference clip for cloning a voice.

Decoding is PyAV's (FFmpeg's libraries in its wheel; no program is run), from memory, with
only the file formats below: a playlist format could make FFmpeg open other files or URLs.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from backend.contract import InvalidRequest, ReferenceClip

# The limits of vLLM-Omni's own speech endpoint (entrypoints/openai/serving_speech.py).
MIN_CLIP_S = 1.0
MAX_CLIP_S = 30.0
MAX_FILE_BYTES = 10 * 1024 * 1024

SAMPLE_RATE_HZ = 24000  # of the codec encoder and the speaker encoder
# Appended before encoding: without it the last sound of the clip is taken up at the start of the
# generated speech (described in andimarafioti/faster-qwen3-tts, README, "ICL Phoneme Artifact").
ONSET_SILENCE_S = 0.5

_FORMATS = "wav,w64,aiff,caf,au,mp3,aac,flac,ogg,mov,mp4,m4a,3gp,matroska,webm,amr,asf,avi"
_LENGTH_FORMATS = ("mp3", "flac", "mov,mp4,m4a,3gp,3g2,mj2", "aiff", "caf", "w64", "au")
_MIN_RATE_HZ, _MAX_RATE_HZ = 8000, 192_000
_DECODE_LIMIT_S = MAX_CLIP_S + 1
# A header may round its length; a file counts as cut off when both are missing.
_MISSING_S, _MISSING_SHARE = 0.25, 0.05

_WINDOW_S = 0.02
_SILENCE_RMS = 1e-3  # -60 dB of full scale
_SILENCE_SHARE = 0.01  # -40 dB of the loudest window
_KEPT_SILENCE_S = 0.1
# Speech has some 1 % of its samples near its peak, a sine wave 29 %, a square wave all.
_NEAR_PEAK, _MAX_NEAR_PEAK_SHARE = 0.9, 0.6

# What PyAV raises for damaged files; its own errors are the first.
_DECODE_ERRORS = (
    av.FFmpegError,
    ValueError,
    ArithmeticError,
    LookupError,
    EOFError,
    RuntimeError,
    MemoryError,
)

_TOO_LONG = f"The reference audio is longer than {MAX_CLIP_S:.0f} s; cut it to {MAX_CLIP_S:.0f} s or less."
_UNREADABLE = (
    "The reference file cannot be read as audio, for it is damaged, incomplete or of another kind;"
    " send a wav, mp3, m4a, flac, ogg or webm file."
)
_NO_SOUND = "The reference file has no sound in it; send an audio file, or a video with sound."

Samples = NDArray[np.float32]


def load_reference_clip(source: str | Path | bytes | BinaryIO) -> ReferenceClip:
    """Decodes, downmixes, resamples and trims a clip: mono float32 at 24 kHz, 1 to 30 s.

    `source` is a path, a file's bytes, or a binary file object (read from where it stands,
    left open). A little silence is kept at both ends. Decoding stops soon after 30 s.
    Raises InvalidRequest with param "reference" and a sentence for people.
    """
    samples, declared_s = _decode(_read(source))
    read_s = len(samples) / SAMPLE_RATE_HZ
    if read_s >= _DECODE_LIMIT_S:
        raise _refusal(_TOO_LONG)
    if declared_s is not None and declared_s - read_s > max(_MISSING_S, _MISSING_SHARE * declared_s):
        raise _refusal(
            f"The reference audio breaks off after {read_s:.1f} s of {declared_s:.1f} s;"
            " the file is damaged or incomplete, so send it again."
        )
    if not np.isfinite(samples).all():
        raise _refusal(
            "The reference audio is damaged (samples that are not numbers); export the file again."
        )
    samples = _trim(samples)
    duration_s = len(samples) / SAMPLE_RATE_HZ
    if duration_s < MIN_CLIP_S:
        raise _refusal(
            f"The reference audio holds only {duration_s:.1f} s of sound;"
            f" at least {MIN_CLIP_S:.0f} s is needed, and 5 to 15 s work best."
        )
    if duration_s > MAX_CLIP_S:
        raise _refusal(_TOO_LONG)
    return ReferenceClip(_limit_peak(samples), SAMPLE_RATE_HZ)


def with_onset_silence(clip: ReferenceClip) -> ReferenceClip:
    """The clip to encode: `clip` and 0.5 s of silence. Show people the duration of `clip` itself."""
    silence = np.zeros(round(ONSET_SILENCE_S * clip.sample_rate_hz), np.float32)
    return ReferenceClip(np.concatenate([clip.samples, silence]), clip.sample_rate_hz)


def _refusal(sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, param="reference")


def _read(source: str | Path | bytes | BinaryIO) -> bytes:
    """At most MAX_FILE_BYTES of a regular file, of bytes or of a file object."""
    if isinstance(source, bytes):
        data = source[: MAX_FILE_BYTES + 1]
    elif isinstance(source, str | Path):
        try:
            path = Path(source)
            if not path.is_file():  # nor a pipe or a device, which might never end
                raise _refusal("The reference audio file cannot be found; choose the file again.")
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: a null byte in the path
            raise _refusal("The reference audio file cannot be opened; choose another file.") from error
    else:
        data = source.read(MAX_FILE_BYTES + 1)
    if not data:
        raise _refusal("The reference audio file is empty; choose another file or record again.")
    if len(data) > MAX_FILE_BYTES:
        raise _refusal(
            f"The reference audio file is larger than {MAX_FILE_BYTES // 2**20} MB;"
            f" send at most {MAX_CLIP_S:.0f} s, as mp3, m4a or flac."
        )
    return data


def _decode(data: bytes) -> tuple[Samples, float | None]:
    """Mono samples at 24 kHz, at most _DECODE_LIMIT_S of them, and the length that the header states."""
    try:
        with av.open(
            io.BytesIO(data),
            mode="r",
            options={"format_whitelist": _FORMATS, "protocol_whitelist": "none"},
            metadata_errors="replace",
        ) as container:
            if not container.streams.audio:
                raise _refusal(_NO_SOUND)
            stream = container.streams.audio[0]
            if stream.codec_context is None:  # a codec that FFmpeg does not know
                raise _refusal(_UNREADABLE)
            if not _MIN_RATE_HZ <= stream.rate <= _MAX_RATE_HZ:
                raise _refusal(
                    f"The reference audio has a sample rate of {stream.rate} Hz;"
                    f" convert it to one between {_MIN_RATE_HZ} and {_MAX_RATE_HZ} Hz."
                )
            pieces = list(_mono_pieces(container, stream))
            read_s = sum(map(len, pieces)) / SAMPLE_RATE_HZ
            declared_s = _declared_s(container, stream, data, read_s)
    except _DECODE_ERRORS as error:
        raise _refusal(_UNREADABLE) from error
    if not pieces:
        raise _refusal(_UNREADABLE)
    return np.concatenate(pieces), declared_s


def _mono_pieces(container: InputContainer, stream: AudioStream) -> Iterator[Samples]:
    # The maximum keeps equal channels at their level: floats would gain 3 dB a pair.
    options = {"rematrix_maxval": "1.0"}
    resampler = AudioResampler("flt", "mono", SAMPLE_RATE_HZ, options=options)
    left = round(_DECODE_LIMIT_S * SAMPLE_RATE_HZ)
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            continue  # a damaged packet; what is missing in the end is counted
        for frame in frames:
            for piece in resampler.resample(frame):
                samples: Samples = piece.to_ndarray()[0]
                yield samples[:left]
                left -= len(samples)
                if left <= 0:
                    return
    for piece in resampler.resample(None):
        yield piece.to_ndarray()[0][:left]


def _declared_s(container: InputContainer, stream: AudioStream, data: bytes, read_s: float) -> float | None:
    """The length that the file's own header states; None where FFmpeg only estimates one."""
    name = container.format.name
    if name == "wav":
        return _riff_declared_s(data, read_s)
    if name == "mp3" and not any(tag in data for tag in (b"Xing", b"Info", b"VBRI")):
        return None
    if name == "matroska,webm" and len(container.streams) == 1 and container.duration is not None:
        return container.duration / av.time_base
    if name not in _LENGTH_FORMATS or stream.duration is None or stream.time_base is None:
        return None
    return float(stream.duration * stream.time_base)


def _riff_declared_s(data: bytes, read_s: float) -> float | None:
    """From the RIFF header's byte count, as FFmpeg shortens a cut-off wav's length to what is there."""
    declared_bytes = int.from_bytes(data[4:8], "little") + 8
    # Recorders that stream do not know the size and write 0 or about 2 or 4 GB.
    if not 8 < declared_bytes < 2**30:
        return None
    return read_s * declared_bytes / len(data)


def _trim(samples: Samples) -> Samples:
    """Cuts silence off both ends; refuses clips that are silent, constant or nothing but clipping."""
    window = round(_WINDOW_S * SAMPLE_RATE_HZ)
    whole = samples[: len(samples) // window * window].reshape(-1, window).astype(np.float64)
    rms = (whole - whole.mean(axis=1, keepdims=True)).std(axis=1) if len(whole) else np.zeros(1)
    if rms.max() < _SILENCE_RMS:
        if len(samples) and abs(float(samples.mean())) > 10 * _SILENCE_RMS:
            raise _refusal(
                "The reference audio is a constant level without sound; check the microphone, record again."
            )
        raise _refusal("The reference audio is silent; check the microphone and record again.")
    loud = np.flatnonzero(rms > max(_SILENCE_RMS, _SILENCE_SHARE * rms.max()))
    magnitudes = np.abs(whole[loud])
    peak = np.quantile(magnitudes, 0.995)  # not the maximum: one click would hide the clipping
    if (magnitudes > _NEAR_PEAK * peak).mean() > _MAX_NEAR_PEAK_SHARE:
        raise _refusal("The reference audio is clipped beyond use; record it again at a lower volume.")
    kept = round(_KEPT_SILENCE_S * SAMPLE_RATE_HZ)
    start, end = int(loud[0]) * window - kept, (int(loud[-1]) + 1) * window + kept
    return samples[max(start, 0) : end]


def _limit_peak(samples: Samples) -> Samples:
    """Scales down what exceeds [-1, 1], as float files and resampling can."""
    peak = float(np.abs(samples).max())
    return np.ascontiguousarray(samples / max(peak, 1.0), dtype=np.float32)
