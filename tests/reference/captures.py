"""What the reference package made (scripts/reference), and requests for the same to our engine."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from numpy.typing import NDArray

from backend.checkpoint import BUNDLED_DIR
from backend.contract import ReferenceClip, SpeechRequest, Task
from backend.families.qwen3_prompt import clip_to_encode
from backend.voices import load_preset_voices
from scripts.reference.processor import processor

FOLDER = Path(__file__).parent
SAMPLES_PER_FRAME = 1920
INT16_MAX = 32767
BUNDLED, TINY = "bundled", "tiny_custom_voice"
# Of a waveform's peak, where a processor of another kind adds up in another order.
WAVEFORM_TOLERANCE = 1e-3
VOICES = {voice.name: voice for voice in load_preset_voices()}


@dataclass(frozen=True)
class Capture:
    """One case: `facts` of the manifest, and arrays by name."""

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    # The first frames as the engine would give them out, int16 [samples]; empty for sampled cases.
    pcm: NDArray[np.int16]

    @property
    def codes(self) -> NDArray[np.int64]:
        return self.arrays["codes"].astype(np.int64)

    @property
    def case(self) -> dict[str, Any]:
        return self.facts["case"]

    def clip(self) -> ReferenceClip:
        """The voice's clip as its file has it, for the capture read no other samples."""
        samples, rate_hz = soundfile.read(VOICES[self.case["voice"]].audio_path, dtype="float32")
        return ReferenceClip(samples, rate_hz)

    def encoded_clip(self) -> ReferenceClip:
        """The clip as the talker is given it."""
        return clip_to_encode(self.request())

    def request(self, **values: Any) -> SpeechRequest:
        case = self.case
        wanted: dict[str, Any] = {
            "text": case["text"],
            "language": case["language"],
            "seed": case["seed"],
            "max_frames": case["max_new_tokens"],
        }
        if not case["sampled"]:
            wanted |= {"temperature": 0.0, "predictor_temperature": 0.0}
        if case["speaker"]:
            wanted |= {"task": Task.NAMED_SPEAKER, "speaker": case["speaker"].lower()}
            wanted |= {"instruction": case["instruction"]}
        else:
            transcript = VOICES[case["voice"]].transcript if case["in_context"] else ""
            wanted |= {"task": Task.VOICE_CLONE, "reference": self.clip(), "transcript": transcript}
            wanted |= {"x_vector_only": not case["in_context"]}
        return SpeechRequest(**(wanted | values))


@cache
def manifest(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name / "manifest.json").read_text(encoding="utf-8"))
    return content


@cache
def capture(name: str, case: str) -> Capture:
    with np.load(FOLDER / name / f"{case}.npz") as arrays:
        kept = dict(arrays)
    sound = FOLDER / name / f"{case}.flac"
    pcm = soundfile.read(sound, dtype="int16")[0] if sound.is_file() else np.zeros(0, np.int16)
    return Capture(manifest(name)["cases"][case], kept, pcm)


def check_checkpoint(name: str, folder: Path) -> None:
    """Fails where the captures are of an older bundled checkpoint; skips where torch draws other weights."""
    for file, made in manifest(name)["checkpoint"]["sha256"].items():
        if hashlib.sha256((folder / file).read_bytes()).hexdigest() != made:
            if folder == BUNDLED_DIR:
                pytest.fail(
                    f"assets/model/{file} is not what was captured; run scripts/reference/capture_all.sh"
                )
            pytest.skip("this version of torch draws other random weights than those captured")


def same_arithmetic(name: str) -> bool:
    """Whether bits can be expected to agree: this processor is of the kind that made the capture."""
    made = manifest(name)
    return processor() == made["processor"] and torch.__version__.split("+")[0] == made["made_with"]["torch"]
