"""Audio files for tests, in the formats that people upload; nothing is read from disk."""

import io
from dataclasses import dataclass

import av
import numpy as np
import soundfile
from av.audio.fifo import AudioFifo
from numpy.typing import NDArray

Samples = NDArray[np.float32]

TONE_HZ = 440.0


@dataclass(frozen=True)
class Encoding:
    """How to write a file: `container` and `codec` by FFmpeg's names, or a soundfile `subtype` for wav."""

    container: str
    codec: str
    rate_hz: int
    layout: str = "mono"
    sample_format: str = "fltp"


# What each is good for is in its name; between them they have every rate and layout that matters.
ENCODINGS: dict[str, Encoding] = {
    "wav-8bit-8k": Encoding("wav", "pcm_u8", 8000, sample_format="u8"),
    "wav-16bit-96k-stereo": Encoding("wav", "pcm_s16le", 96000, "stereo", "s16"),
    "wav-24bit-48k-5.1": Encoding("wav", "pcm_s24le", 48000, "5.1", "s32"),
    "wav-32bit-44k1": Encoding("wav", "pcm_s32le", 44100, sample_format="s32"),
    "wav-float-44k1-stereo": Encoding("wav", "pcm_f32le", 44100, "stereo", "flt"),
    "mp3-44k1-stereo": Encoding("mp3", "libmp3lame", 44100, "stereo"),
    "mp3-16k": Encoding("mp3", "libmp3lame", 16000),
    "m4a-aac-44k1": Encoding("mp4", "aac", 44100),
    "m4a-aac-48k-5.1": Encoding("mp4", "aac", 48000, "5.1"),
    "aac-adts-44k1": Encoding("adts", "aac", 44100),
    "flac-22k05": Encoding("flac", "flac", 22050, sample_format="s16"),
    "ogg-opus-48k-stereo": Encoding("ogg", "libopus", 48000, "stereo", "flt"),
    "webm-opus-48k": Encoding("webm", "libopus", 48000, sample_format="flt"),
}


def tone(duration_s: float, rate_hz: int = 24000, level: float = 0.3) -> Samples:
    """A 440 Hz sine of peak `level`, shape [samples]."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    return (level * np.sin(2 * np.pi * TONE_HZ * time_s)).astype(np.float32)


def silence(duration_s: float, rate_hz: int = 24000) -> Samples:
    return np.zeros(round(duration_s * rate_hz), np.float32)


def wav(samples: Samples, rate_hz: int = 24000, subtype: str = "PCM_16") -> bytes:
    """A wav file of mono samples [samples] or of channels [samples, channels]."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate_hz, format="WAV", subtype=subtype)
    return buffer.getvalue()


def encode(samples: Samples, encoding: Encoding) -> bytes:
    """A file with mono `samples` at the encoding's rate, the same in every channel."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=encoding.container) as container:
        stream = container.add_stream(encoding.codec, rate=encoding.rate_hz, layout=encoding.layout)
        channels = np.repeat(samples[None], stream.layout.nb_channels, axis=0)
        frame = av.AudioFrame.from_ndarray(channels, format="fltp", layout=encoding.layout)
        frame.rate = encoding.rate_hz
        resampler = av.AudioResampler(encoding.sample_format, encoding.layout, encoding.rate_hz)
        fifo = AudioFifo()
        for piece in resampler.resample(frame):
            piece.pts = None
            fifo.write(piece)
        while (piece := fifo.read(stream.codec_context.frame_size or 1024, partial=True)) is not None:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def video(duration_s: float, with_sound: bool) -> bytes:
    """An mp4 video of grey pictures, with a tone or without any audio stream."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        pictures = container.add_stream("mpeg4", rate=10)
        pictures.width = pictures.height = 64
        sound = container.add_stream("aac", rate=24000, layout="mono") if with_sound else None
        for _ in range(round(duration_s * 10)):
            grey = np.full((64, 64, 3), 128, np.uint8)
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(pictures.encode(None))
        if sound is not None:
            samples = tone(duration_s)
            for start in range(0, len(samples) - 1023, 1024):
                frame = av.AudioFrame.from_ndarray(samples[None, start : start + 1024], "fltp", "mono")
                frame.rate, frame.pts = 24000, start
                container.mux(sound.encode(frame))
            container.mux(sound.encode(None))
    return buffer.getvalue()
