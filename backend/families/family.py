"""The seam between the app and one model of vLLM-Omni.

All that is true of one model and not of the next is said by its `ModelFamily`; what differs between
checkpoints of one model is in the `ModelInfo` that the family reads from a checkpoint's config files.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from backend.contract import SpeechError, SpeechRequest, Task
from backend.stage_schema import StageConfig

Tokenize = Callable[[str], list[int]]

BYTES_PER_BF16 = 2


class CheckpointError(SpeechError):
    """The folder has no checkpoint that this app can speak with."""


@dataclass(frozen=True)
class Profiles:
    """The stage configurations a family starts by where none is named."""

    cpu: str
    gpu: str


@dataclass(frozen=True)
class ModelInfo:
    """What a checkpoint can do. `samples_per_frame` is the codec's hop length, in output samples."""

    family: "ModelFamily"
    folder: Path
    # The first is the one where a request names none.
    tasks: tuple[Task, ...]
    languages: tuple[str, ...]
    speakers: tuple[str, ...]
    supports_instruction: bool
    # Whether a voice can be cloned from a clip without its transcript.
    supports_x_vector: bool
    sample_rate_hz: int
    samples_per_frame: int
    # Codes in a frame.
    codebooks: int
    # Frames of left context that a streamed chunk is decoded with at least.
    decoder_window_frames: int
    talker_bytes: int
    decoder_bytes: int
    kv_bytes_per_token: int
    # How the checkpoint wants to be sampled, in a stage configuration's words.
    talker_sampling: dict[str, Any]
    predictor_sampling: dict[str, Any]

    @property
    def frame_rate_hz(self) -> float:
        return self.sample_rate_hz / self.samples_per_frame


class ModelFamily(ABC):
    """One model of vLLM-Omni, in all sizes and variants. Stateless; imports vLLM-Omni in methods only."""

    # As people know it, and where to get it.
    name: str
    example_model: str
    # `model_type` in config.json, by which a checkpoint is recognised.
    model_type: str
    # Read by `read`; all that is fetched of a hub model before it is known to be one of ours.
    config_files: tuple[str, ...]
    profiles: Profiles
    # A ceiling for speech that fails to end: frames for each text token, and never less than the other.
    frames_per_text_token: int
    least_frame_limit: int
    # The longest text that is spoken in one piece where it cannot be cut (see `prompt.pieces`).
    max_uncut_text_chars: int
    # Whether chunks may grow by `codec_chunk_ramp`, and a request may choose its first chunk.
    grows_chunks: bool
    # Of each first sentence, and of the last one, whose speed is the first estimate of RTF.
    warm_up_frames: tuple[int, int] = (30, 60)
    # Classes of ours, by the architecture of vLLM-Omni's that each replaces.
    replaced_models: ClassVar[Mapping[str, str]] = {}
    # Why a request has no say in how the code predictor runs and samples; empty where it is ours.
    foreign_predictor: str = ""

    @abstractmethod
    def read(self, folder: Path, config: dict[str, Any]) -> ModelInfo:
        """From the folder's config files, of which `config` is config.json. Raises CheckpointError.

        A KeyError, TypeError or AttributeError is taken for a key that is missing there.
        """

    @abstractmethod
    def build_prompt(self, request: SpeechRequest, model: ModelInfo, tokenize: Tokenize) -> dict[str, Any]:
        """The prompt for `AsyncOmni.generate`, of a request that has been checked."""

    def check(self, request: SpeechRequest) -> None:
        """Raises InvalidRequest for what only this family cannot speak."""
        return

    def extra_args(self, seed: int) -> dict[str, Any]:
        """What the first stage's `SamplingParams.extra_args` must have for a run with this seed."""
        return {}

    def chunk_schedule_frames(self, config: StageConfig) -> tuple[int, ...]:
        """Frames of each streamed chunk, the last entry repeating; empty if nothing is streamed."""
        return config.chunk_schedule_frames

    def first_chunk_limit_frames(self, config: StageConfig) -> int:
        """The largest first chunk a request may ask for; 0 where it has no say in it."""
        return config.max_first_chunk_frames if self.grows_chunks else 0


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """One of a checkpoint's config files. Raises CheckpointError."""
    try:
        content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
        return content
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is not a checkpoint: {name} cannot be read; "
            "give --model a checkpoint folder or a hub id such as Qwen/Qwen3-TTS-12Hz-0.6B-Base."
        ) from error


def weights_bytes(folder: Path, pattern: str = "*.safetensors") -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))
