import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from av.audio.stream import AudioStream
from av.container import InputContainer

from backend import reference_audio
from backend.contract import InvalidRequest, ReferenceClip
from backend.reference_audio import (
    MAX_FILE_BYTES,
    ONSET_SILENCE_S,
    SAMPLE_RATE_HZ,
    load_reference_clip,
    with_onset_silence,
)
from tests.audio_files import ENCODINGS, TONE_HZ, Samples, encode, silence, tone, video, wav


def loudest_hz(clip: ReferenceClip) -> float:
    spectrum = np.abs(np.fft.rfft(clip.samples * np.hanning(len(clip.samples))))
    return float(np.fft.rfftfreq(len(clip.samples), 1 / clip.sample_rate_hz)[spectrum.argmax()])


def tone_level(clip: ReferenceClip) -> float:
    """The peak of a sine, from the RMS of the clip's middle half."""
    quarter = len(clip.samples) // 4
    return float(np.sqrt(2 * np.mean(clip.samples[quarter:-quarter] ** 2)))


def refusal(source: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        load_reference_clip(source)  # type: ignore[arg-type]
    assert caught.value.param == "reference"
    return str(caught.value)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_tone_comes_back_whole_from_every_format(name: str) -> None:
    encoding = ENCODINGS[name]
    clip = load_reference_clip(encode(tone(2.5, encoding.rate_hz, level=0.3), encoding))

    assert clip.sample_rate_hz == 24000
    assert clip.samples.dtype == np.float32
    assert clip.samples.ndim == 1
    assert clip.duration_s == pytest.approx(2.5, abs=0.05)
    assert loudest_hz(clip) == pytest.approx(TONE_HZ, abs=1)
    assert tone_level(clip) == pytest.approx(0.3, rel=0.06)  # 0.5 dB


def test_the_sound_of_a_video_is_taken() -> None:
    clip = load_reference_clip(video(2.0, with_sound=True))
    assert clip.duration_s == pytest.approx(2.0, abs=0.1)
    assert loudest_hz(clip) == pytest.approx(TONE_HZ, abs=1)


@pytest.mark.parametrize("kind", ["str", "path", "bytes", "file object"])
def test_paths_bytes_and_file_objects_give_the_same_clip(kind: str, tmp_path: Path) -> None:
    data = wav(tone(2.0))
    path = tmp_path / "clip.wav"
    path.write_bytes(data)
    source = {"str": str(path), "path": path, "bytes": data, "file object": io.BytesIO(data)}[kind]
    clip = load_reference_clip(source)
    np.testing.assert_array_equal(clip.samples, load_reference_clip(data).samples)


def test_a_16_bit_wav_at_24_khz_is_not_altered() -> None:
    samples = tone(2.0)
    assert np.abs(load_reference_clip(wav(samples)).samples - samples).max() <= 1 / 32768


def test_what_24_khz_cannot_hold_does_not_fold_back() -> None:
    time_s = np.arange(96000) / 48000
    high = 0.3 * np.sin(2 * np.pi * 16000 * time_s)  # would come back as 8 kHz
    low = 0.1 * np.sin(2 * np.pi * 300 * time_s)
    clip = load_reference_clip(wav((high + low).astype(np.float32), 48000))
    assert tone_level(clip) == pytest.approx(0.1, rel=0.02)


def test_channels_are_averaged() -> None:
    left_only = np.stack([tone(2.0, level=0.4), silence(2.0)], axis=1)
    assert tone_level(load_reference_clip(wav(left_only))) == pytest.approx(0.2, rel=0.02)


def test_silence_at_the_ends_is_trimmed_and_pauses_inside_are_kept() -> None:
    parts = [silence(2.0), tone(1.0), silence(1.5), tone(1.0), silence(3.0)]
    clip = load_reference_clip(wav(np.concatenate(parts)))
    assert clip.duration_s == pytest.approx(0.1 + 3.5 + 0.1, abs=0.03)
    assert np.abs(clip.samples[: round(0.09 * 24000)]).max() == 0
    assert np.abs(clip.samples[round(0.13 * 24000) :][:240]).max() > 0.2


def test_a_quiet_recording_keeps_its_level() -> None:
    clip = load_reference_clip(wav(tone(2.0, level=0.01), subtype="PCM_24"))
    assert tone_level(clip) == pytest.approx(0.01, rel=0.02)


def test_float_samples_beyond_full_scale_are_scaled_down_not_cut() -> None:
    clip = load_reference_clip(wav(tone(2.0, level=4.0), subtype="FLOAT"))
    assert np.abs(clip.samples).max() == pytest.approx(1.0, abs=1e-6)
    assert tone_level(clip) == pytest.approx(1.0, rel=0.01)


def test_mild_clipping_is_accepted() -> None:
    clipped = np.clip(tone(2.0, level=1.2), -0.99, 0.99)
    assert load_reference_clip(wav(clipped)).duration_s == pytest.approx(2.0, abs=0.03)


def test_onset_silence_is_half_a_second_at_the_end() -> None:
    clip = load_reference_clip(wav(tone(2.0)))
    padded = with_onset_silence(clip)
    assert padded.duration_s == pytest.approx(clip.duration_s + ONSET_SILENCE_S)
    assert padded.samples.dtype == np.float32
    np.testing.assert_array_equal(padded.samples[: len(clip.samples)], clip.samples)
    assert not padded.samples[len(clip.samples) :].any()


def test_the_longest_allowed_clip_is_accepted() -> None:
    assert load_reference_clip(wav(tone(29.9))).duration_s == pytest.approx(29.9, abs=0.03)


def test_too_short_is_refused_with_the_length_found() -> None:
    message = refusal(wav(np.concatenate([silence(2.0), tone(0.4), silence(2.0)])))
    assert "only 0.6 s of sound" in message  # 0.1 s is kept at each end
    assert "at least 1 s" in message


@pytest.mark.parametrize("duration_s", [30.5, 40.0])
def test_too_long_is_refused(duration_s: float) -> None:
    assert "longer than 30 s" in refusal(wav(tone(duration_s)))


def test_a_very_long_file_is_refused_without_decoding_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = ENCODINGS["webm-opus-48k"]
    data = encode(tone(90.0, encoding.rate_hz), encoding)
    pieces: list[int] = []
    original = reference_audio._mono_pieces

    def spy(container: InputContainer, stream: AudioStream) -> Iterator[Samples]:
        for piece in original(container, stream):
            pieces.append(len(piece))
            yield piece

    monkeypatch.setattr(reference_audio, "_mono_pieces", spy)
    assert "longer than 30 s" in refusal(data)
    assert 30 <= sum(pieces) / SAMPLE_RATE_HZ <= 32
    assert len(pieces) <= 32 / 0.02  # Opus frames of 20 ms


@pytest.mark.parametrize("level", [0.0, 1e-4])
def test_silent_is_refused(level: float) -> None:
    assert "is silent" in refusal(wav(tone(3.0, level=level), subtype="PCM_24"))


def test_a_constant_level_is_refused() -> None:
    assert "constant level" in refusal(wav(np.full(72000, 0.9, np.float32)))


def test_clipped_to_nothing_is_refused() -> None:
    generator = np.random.default_rng(0)
    speech_like = generator.laplace(scale=0.1, size=72000) * (1 + np.sin(np.arange(72000) / 3000))
    assert load_reference_clip(wav(np.clip(speech_like, -1, 1).astype(np.float32))).duration_s > 2
    crushed = np.clip(100 * speech_like, -1, 1).astype(np.float32)
    assert "clipped beyond use" in refusal(wav(crushed))


@pytest.mark.parametrize(
    "data",
    [
        b"This is a letter, not a recording. " * 200,
        bytes(range(256)) * 100,
        b"%PDF-1.7\n" * 500,
    ],
    ids=["text", "bytes", "pdf"],
)
def test_what_is_not_audio_is_refused(data: bytes) -> None:
    assert "cannot be read as audio" in refusal(data)


@pytest.mark.parametrize(
    "playlist",
    ["ffconcat version 1.0\nfile 'secret.wav'\n", "#EXTM3U\n#EXTINF:2,\nsecret.wav\n#EXT-X-ENDLIST\n"],
    ids=["concat", "hls"],
)
def test_a_playlist_cannot_make_the_decoder_open_other_files(
    playlist: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.wav").write_bytes(wav(tone(2.0)))
    monkeypatch.chdir(tmp_path)
    assert "cannot be read as audio" in refusal(playlist.encode())


def test_a_video_without_sound_is_refused() -> None:
    assert "has no sound in it" in refusal(video(2.0, with_sound=False))


@pytest.mark.parametrize(
    "name", ["wav-16bit-96k-stereo", "wav-float-44k1-stereo", "flac-22k05", "mp3-44k1-stereo"]
)
def test_a_file_cut_off_halfway_is_refused_with_what_is_missing(name: str) -> None:
    encoding = ENCODINGS[name]
    data = encode(tone(4.0, encoding.rate_hz), encoding)
    message = refusal(data[: len(data) // 2])
    assert "breaks off after" in message
    assert "of 4.0 s" in message


def test_an_m4a_cut_off_before_its_index_is_refused() -> None:
    encoding = ENCODINGS["m4a-aac-44k1"]
    data = encode(tone(4.0, encoding.rate_hz), encoding)
    assert "incomplete" in refusal(data[: len(data) // 2])


@pytest.mark.parametrize("unknown_size", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_streamed_wav_with_an_unknown_size_is_accepted(unknown_size: int) -> None:
    data = bytearray(wav(tone(2.0)))
    data[4:8] = data[40:44] = unknown_size.to_bytes(4, "little")
    if unknown_size == 0:
        data[40:44] = (0xFFFFFFFF).to_bytes(4, "little")
    assert load_reference_clip(bytes(data)).duration_s == pytest.approx(2.0, abs=0.03)


def test_samples_that_are_not_numbers_are_refused() -> None:
    samples = tone(2.0)
    samples[1000:1010] = np.nan
    assert "not numbers" in refusal(wav(samples, subtype="FLOAT"))


def test_an_unusable_sample_rate_is_refused_by_name() -> None:
    assert "4000 Hz" in refusal(wav(tone(3.0, 4000), 4000))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.wav"
    path.touch()
    assert "is empty" in refusal(path)
    assert "is empty" in refusal(b"")


def test_a_file_over_10_mb_is_refused_without_reading_on(tmp_path: Path) -> None:
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it all would take minutes
    assert "larger than 10 MB" in refusal(path)

    stream = io.BytesIO(bytes(MAX_FILE_BYTES + 1000))
    assert "larger than 10 MB" in refusal(stream)
    assert stream.tell() == MAX_FILE_BYTES + 1


@pytest.mark.parametrize(
    "name", ["nothing.wav", "", "a\0b", "/dev/zero", "https://example.com/a.wav", "x" * 5000]
)
def test_what_is_no_file_is_refused(name: str) -> None:
    message = refusal(name)
    assert "cannot be found" in message or "cannot be opened" in message


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "cannot be found" in refusal(tmp_path)


def test_no_file_stays_open(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.wav", tmp_path / "bad.wav"
    good.write_bytes(wav(tone(2.0)))
    bad.write_bytes(wav(tone(2.0))[:20])
    load_reference_clip(good)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        load_reference_clip(good)
        refusal(bad)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ENCODINGS)
def test_damaged_files_give_a_clip_or_a_refusal(name: str) -> None:
    encoding = ENCODINGS[name]
    data = encode(tone(1.5, encoding.rate_hz), encoding)
    generator = np.random.default_rng(len(data))
    damaged = [data[:cut] for cut in generator.integers(1, len(data), 6)]
    for flips in (1, 3, 10, 30, 100, 300, 1000):
        for span in (200, len(data)):  # the header alone, where most of the parsing is, and the whole
            copy = np.frombuffer(data, np.uint8).copy()
            copy[generator.integers(0, span, flips)] = generator.integers(0, 256, flips)
            damaged.append(copy.tobytes())
    for file in damaged:
        with contextlib.suppress(InvalidRequest):
            clip = load_reference_clip(file)
            assert 1.0 <= clip.duration_s <= 30.0
            assert np.abs(clip.samples).max() <= 1.0
