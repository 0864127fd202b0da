"""Speech as the bytes of a format."""

import io
import struct

import av
import soundfile

from backend.contract import Pcm
from backend.serving.schema import AudioFormat
from backend.serving.tempo import at_speed

MEDIA_TYPES: dict[AudioFormat, str] = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
# Container and subtype; vLLM-Omni's encoder writes the same.
_LIBSNDFILE = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
}
AAC_BITS_PER_S = 96_000
_BYTES_PER_SAMPLE = 2
# What writers of endless files put where a size belongs; OpenAI and vLLM-Omni do the same.
_UNKNOWN_SIZE = 0xFFFFFFFF


def encode(pcm: Pcm, sample_rate_hz: int, audio_format: AudioFormat, speed: float = 1.0) -> bytes:
    """A whole clip, [samples], as a file of `audio_format`; takes a moment, so call it in a thread.

    `speed` above 1 shortens the clip at the same pitch.
    """
    if speed != 1.0:
        pcm = at_speed(pcm, sample_rate_hz, speed)
    if audio_format == "pcm":
        return pcm_bytes(pcm)
    if audio_format == "aac":
        return _aac(pcm, sample_rate_hz)
    container, subtype = _LIBSNDFILE[audio_format]
    buffer = io.BytesIO()
    soundfile.write(buffer, pcm, sample_rate_hz, format=container, subtype=subtype)
    return buffer.getvalue()


def pcm_bytes(pcm: Pcm) -> bytes:
    """Little-endian 16-bit samples without a header."""
    return pcm.astype("<i2", copy=False).tobytes()


def open_ended_wav_header(sample_rate_hz: int) -> bytes:
    """44 bytes that begin a mono 16-bit WAV of unknown length."""
    fmt = struct.pack(
        "<HHIIHH", 1, 1, sample_rate_hz, sample_rate_hz * _BYTES_PER_SAMPLE, _BYTES_PER_SAMPLE, 16
    )
    return struct.pack(
        "<4sI4s4sI16s4sI", b"RIFF", _UNKNOWN_SIZE, b"WAVE", b"fmt ", len(fmt), fmt, b"data", _UNKNOWN_SIZE
    )


def _aac(pcm: Pcm, sample_rate_hz: int) -> bytes:
    """AAC in ADTS frames, which OpenAI's aac is."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="adts") as container:
        stream = container.add_stream("aac", rate=sample_rate_hz, layout="mono")
        stream.bit_rate = AAC_BITS_PER_S
        frame = av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.rate = sample_rate_hz
        resampler = av.AudioResampler("fltp", "mono", sample_rate_hz, stream.codec_context.frame_size or 1024)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return buffer.getvalue()
