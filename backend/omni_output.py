"""Audio out of vLLM-Omni's outputs."""

from typing import Any

import numpy as np

from backend.contract import Pcm

_INT16_MAX = 32767


def as_pcm(output: Any) -> Pcm | None:
    """The new audio in one output of `AsyncOmni.generate`, shape [samples]; None where it brings none.

    Delta outputs carry float samples in [-1, 1] as one tensor or a list of them.
    """
    audio = (output.multimodal_output or {}).get("audio")
    if audio is None:
        return None
    parts = audio if isinstance(audio, list) else [audio]
    samples = [part.detach().float().cpu().numpy().reshape(-1) for part in parts]
    joined = np.concatenate(samples) if samples else np.zeros(0, np.float32)
    if joined.size == 0:
        return None
    return np.rint(np.clip(joined, -1.0, 1.0) * _INT16_MAX).astype(np.int16)
