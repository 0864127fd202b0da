"""Mono 16-bit wav files with the standard library alone: the training machine has no soundfile."""

import wave
from pathlib import Path

import numpy as np


def read_wav(path: Path, rate_hz: int = 24000) -> np.ndarray:
    """float32 samples. Raises ValueError for any other format than mono, 16 bit, `rate_hz`."""
    with wave.open(str(path)) as f:
        found = (f.getnchannels(), f.getsampwidth(), f.getframerate())
        if found != (1, 2, rate_hz):
            raise ValueError(f"{path}: channels, bytes a sample and rate are {found}, not (1, 2, {rate_hz})")
        return np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float32) / 32768


def write_wav(path: Path, samples: np.ndarray, rate_hz: int) -> None:
    """Samples in [-1, 1]; what lies outside is clipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(rate_hz)
        f.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())
