"""What a Qwen3-TTS checkpoint says of itself, read from its config files alone."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.contract import SpeechError, Task

# `tts_model_type` in config.json; vLLM-Omni's adapter (tts_adapters/qwen3_tts.py) knows the same three.
_TASK_OF_MODEL_TYPE = {
    "base": Task.VOICE_CLONE,
    "custom_voice": Task.NAMED_SPEAKER,
    "voice_design": Task.VOICE_DESIGN,
}
# The model's and the codec's.
CONFIG_FILES = ("config.json", "speech_tokenizer/config.json")
_SAMPLING_FILE = "generation_config.json"
_BYTES_PER_BF16 = 2
# Of the published checkpoints, for one that does not say.
_TALKER_SAMPLING = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}
_PREDICTOR_SAMPLING = {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0}
# Published checkpoints of this size were not trained on instructions for named speakers: the
# reference package drops the instruction there (qwen_tts/inference/qwen3_tts_model.py).
_SIZE_WITHOUT_INSTRUCTIONS = "0b6"


class CheckpointError(SpeechError):
    """The folder is not a Qwen3-TTS 12 Hz checkpoint."""


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a checkpoint: `samples_per_frame` is the codec's hop length, in output samples."""

    folder: Path
    task: Task
    languages: tuple[str, ...]
    speakers: tuple[str, ...]
    supports_instruction: bool
    sample_rate_hz: int
    samples_per_frame: int
    decoder_window_frames: int
    talker_bytes: int
    decoder_bytes: int
    kv_bytes_per_token: int
    language_ids: dict[str, int]
    speaker_dialects: dict[str, Any]
    # How the checkpoint wants to be sampled, in a stage configuration's words.
    talker_sampling: dict[str, Any]
    predictor_sampling: dict[str, Any]

    @property
    def frame_rate_hz(self) -> float:
        return self.sample_rate_hz / self.samples_per_frame


def read_model_info(folder: Path) -> ModelInfo:
    """Reads `config.json` and `speech_tokenizer/config.json`; raises CheckpointError with a sentence."""
    config, codec = (_read_json(folder, name) for name in CONFIG_FILES)
    sampling = _read_json(folder, _SAMPLING_FILE) if (folder / _SAMPLING_FILE).is_file() else {}
    try:
        return _model_info(folder, config, codec, sampling)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{folder} is not a Qwen3-TTS 12 Hz checkpoint ({error} is missing from its config files); "
            "give --model one that is, such as Qwen/Qwen3-TTS-12Hz-0.6B-Base."
        ) from error


def _model_info(
    folder: Path, config: dict[str, Any], codec: dict[str, Any], sampling: dict[str, Any]
) -> ModelInfo:
    if config["model_type"] != "qwen3_tts" or codec["model_type"] != "qwen3_tts_tokenizer_12hz":
        raise KeyError("model_type qwen3_tts with a 12 Hz speech tokenizer")
    task = _TASK_OF_MODEL_TYPE[config["tts_model_type"]]
    talker = config["talker_config"]
    kv_values_per_token = 2 * talker["num_hidden_layers"] * talker["num_key_value_heads"] * talker["head_dim"]
    drops_instruction = (
        task is Task.NAMED_SPEAKER and config.get("tts_model_size") == _SIZE_WITHOUT_INSTRUCTIONS
    )
    dialects = set(filter(None, talker.get("spk_is_dialect", {}).values()))
    return ModelInfo(
        folder=folder,
        task=task,
        languages=("Auto", *(name.title() for name in talker["codec_language_id"] if name not in dialects)),
        speakers=tuple(talker.get("spk_id", {})) if task is Task.NAMED_SPEAKER else (),
        supports_instruction=task is not Task.VOICE_CLONE and not drops_instruction,
        sample_rate_hz=codec["output_sample_rate"],
        samples_per_frame=codec["decode_upsample_rate"],
        decoder_window_frames=codec["decoder_config"]["sliding_window"],
        talker_bytes=_weights_bytes(folder),
        decoder_bytes=_weights_bytes(folder / "speech_tokenizer"),
        kv_bytes_per_token=_BYTES_PER_BF16 * kv_values_per_token,
        language_ids=dict(talker["codec_language_id"]),
        speaker_dialects=dict(talker.get("spk_is_dialect", {})),
        talker_sampling=_talker_sampling(sampling),
        predictor_sampling=_predictor_sampling(sampling),
    )


def _talker_sampling(file: dict[str, Any]) -> dict[str, Any]:
    wanted = {key: _given(file, key, value) for key, value in _TALKER_SAMPLING.items()}
    return wanted | ({"temperature": 0.0} if file.get("do_sample") is False else {})


def _predictor_sampling(file: dict[str, Any]) -> dict[str, Any]:
    # "subtalker_dosample" is how the published files spell it.
    names = {key: f"subtalker_{key.replace('_sample', 'sample')}" for key in _PREDICTOR_SAMPLING}
    return {key: _given(file, names[key], value) for key, value in _PREDICTOR_SAMPLING.items()}


def _given(file: dict[str, Any], name: str, default: float) -> float:
    """The number `file` has under `name`; null is as good as nothing there."""
    value = file.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float):
        raise CheckpointError(f"{_SAMPLING_FILE} must have a number for {name}, not {value!r}.")
    return value


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
        return content
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is not a Qwen3-TTS checkpoint: {name} cannot be read; "
            "give --model a checkpoint folder or a hub id such as Qwen/Qwen3-TTS-12Hz-0.6B-Base."
        ) from error


def _weights_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
