"""Every format, written by us and read by FFmpeg's libraries."""

import io

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from backend.serving.formats import MEDIA_TYPES, encode, open_ended_wav_header, pcm_bytes
from backend.serving.schema import AudioFormat
from backend.serving.tempo import Tempo, at_speed
from tests.audio_files import TONE_HZ, tone

RATE_HZ = 24_000
PCM = np.rint(tone(3.0) * 32767).astype(np.int16)
# What encoders put before or after the audio.
PADDING_S = {"wav": 0.0, "flac": 0.0, "pcm": 0.0, "mp3": 0.1, "opus": 0.05, "aac": 0.1}
CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "mp3", "opus": "opus", "aac": "aac"}


def decoded(data: bytes) -> tuple[NDArray[np.float32], int, str]:
    """Mono samples [samples], their rate in Hz and the codec's name."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        assert stream.layout.nb_channels == 1
        resampler = av.AudioResampler("flt", "mono", stream.rate)
        frames = [piece for frame in container.decode(stream) for piece in resampler.resample(frame)]
        samples = np.concatenate([frame.to_ndarray()[0] for frame in [*frames, *resampler.resample(None)]])
        return samples, stream.rate, stream.codec_context.name.removesuffix("float")


def frequency(samples: NDArray[np.float32], rate_hz: int) -> float:
    middle = samples[len(samples) // 4 : 3 * len(samples) // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    return float(spectrum.argmax() * rate_hz / len(middle))


@pytest.mark.parametrize("audio_format", sorted(CODECS))
def test_another_decoder_hears_the_same(audio_format: AudioFormat) -> None:
    samples, rate_hz, codec = decoded(encode(PCM, RATE_HZ, audio_format))
    assert codec == CODECS[audio_format]
    assert rate_hz in (RATE_HZ, 48_000)
    assert 0 <= len(samples) / rate_hz - 3.0 <= PADDING_S[audio_format] + 0.001
    assert frequency(samples, rate_hz) == pytest.approx(TONE_HZ, abs=1.0)
    assert np.abs(samples[rate_hz : 2 * rate_hz]).max() == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("audio_format", ["wav", "flac"])
def test_lossless_formats_lose_nothing(audio_format: AudioFormat) -> None:
    samples, _, _ = decoded(encode(PCM, RATE_HZ, audio_format))
    np.testing.assert_array_equal(np.rint(samples * 32768).astype(np.int16), PCM)


def test_pcm_is_the_samples_and_an_open_ended_wav_is_read_to_its_end() -> None:
    assert encode(PCM, RATE_HZ, "pcm") == PCM.astype("<i2").tobytes()
    samples, rate_hz, _ = decoded(open_ended_wav_header(RATE_HZ) + pcm_bytes(PCM))
    assert rate_hz == RATE_HZ
    np.testing.assert_array_equal(np.rint(samples * 32768).astype(np.int16), PCM)


@pytest.mark.parametrize("speed", [0.25, 0.9, 1.25, 4.0])
@pytest.mark.parametrize("audio_format", ["wav", "aac"])
def test_speed_changes_the_length_and_not_the_pitch(speed: float, audio_format: AudioFormat) -> None:
    samples, rate_hz, _ = decoded(encode(PCM, RATE_HZ, audio_format, speed))
    assert len(samples) / rate_hz == pytest.approx(3.0 / speed, abs=PADDING_S[audio_format] + 0.05)
    assert frequency(samples, rate_hz) == pytest.approx(TONE_HZ, abs=3.0)


@pytest.mark.parametrize("piece_samples", [1, 1920, 50_000])
def test_speed_does_not_depend_on_the_pieces(piece_samples: int) -> None:
    tempo = Tempo(1.5, RATE_HZ)
    short = PCM[: RATE_HZ // 2]
    pieces = [
        tempo.push(short[start : start + piece_samples]) for start in range(0, len(short), piece_samples)
    ]
    np.testing.assert_array_equal(np.concatenate([*pieces, tempo.finish()]), at_speed(short, RATE_HZ, 1.5))


@pytest.mark.parametrize("audio_format", sorted(MEDIA_TYPES))
def test_the_shortest_clips_are_written(audio_format: AudioFormat) -> None:
    assert encode(PCM[:1920], RATE_HZ, audio_format)
