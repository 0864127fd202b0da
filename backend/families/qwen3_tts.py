"""Qwen3-TTS, 12 Hz: cloning, named speakers or designed voices, one task a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from backend.contract import SpeechRequest, Task
from backend.families.family import (
    BYTES_PER_BF16,
    CheckpointError,
    ModelFamily,
    ModelInfo,
    Profiles,
    Tokenize,
    read_json,
    weights_bytes,
)
from backend.families.qwen3_prompt import Qwen3TtsInfo, build_prompt

# `tts_model_type` in config.json; vLLM-Omni's adapter (tts_adapters/qwen3_tts.py) knows the same three.
_TASK_OF_MODEL_TYPE = {
    "base": Task.VOICE_CLONE,
    "custom_voice": Task.NAMED_SPEAKER,
    "voice_design": Task.VOICE_DESIGN,
}
_SAMPLING_FILE = "generation_config.json"
# Of the published checkpoints, for one that does not say.
_TALKER_SAMPLING = {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05}
_PREDICTOR_SAMPLING = {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0}
# Published checkpoints of this size were not trained on instructions for named speakers: the
# reference package drops the instruction there (qwen_tts/inference/qwen3_tts_model.py).
_SIZE_WITHOUT_INSTRUCTIONS = "0b6"


# Fixed in vLLM-Omni, too (stage_input_processors/qwen3_tts.py).
CODEBOOKS = 16
_CODEC_FOLDER = "speech_tokenizer"
_CODEC_FILE = f"{_CODEC_FOLDER}/config.json"


class Qwen3Tts(ModelFamily):
    name = "Qwen3-TTS 12 Hz"
    example_model = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
    model_type = "qwen3_tts"
    config_files = ("config.json", _CODEC_FILE)
    profiles = Profiles(cpu="cpu", gpu="gpu")
    # vLLM-Omni's own numbers (tts_adapters/qwen3_tts.py).
    frames_per_text_token = 12
    least_frame_limit = 192
    max_uncut_text_chars = 2000
    grows_chunks = True
    replaced_models: ClassVar[Mapping[str, str]] = {
        "Qwen3TTSTalkerForConditionalGeneration": "backend.talker:Talker",
        "Qwen3TTSCode2Wav": "backend.decoder:Decoder",
    }

    def read(self, folder: Path, config: dict[str, Any]) -> Qwen3TtsInfo:
        codec = read_json(folder, _CODEC_FILE)
        sampling = read_json(folder, _SAMPLING_FILE) if (folder / _SAMPLING_FILE).is_file() else {}
        if codec["model_type"] != "qwen3_tts_tokenizer_12hz":
            raise KeyError("a 12 Hz speech tokenizer")
        task = _TASK_OF_MODEL_TYPE[config["tts_model_type"]]
        talker = config["talker_config"]
        kv_values_per_token = (
            2 * talker["num_hidden_layers"] * talker["num_key_value_heads"] * talker["head_dim"]
        )
        drops_instruction = (
            task is Task.NAMED_SPEAKER and config.get("tts_model_size") == _SIZE_WITHOUT_INSTRUCTIONS
        )
        dialects = set(filter(None, talker.get("spk_is_dialect", {}).values()))
        languages = (name.title() for name in talker["codec_language_id"] if name not in dialects)
        return Qwen3TtsInfo(
            family=self,
            folder=folder,
            tasks=(task,),
            languages=("Auto", *languages),
            speakers=tuple(talker.get("spk_id", {})) if task is Task.NAMED_SPEAKER else (),
            supports_instruction=task is not Task.VOICE_CLONE and not drops_instruction,
            supports_x_vector=task is Task.VOICE_CLONE,
            sample_rate_hz=codec["output_sample_rate"],
            samples_per_frame=codec["decode_upsample_rate"],
            codebooks=CODEBOOKS,
            decoder_window_frames=codec["decoder_config"]["sliding_window"],
            talker_bytes=weights_bytes(folder),
            decoder_bytes=weights_bytes(folder / _CODEC_FOLDER),
            kv_bytes_per_token=BYTES_PER_BF16 * kv_values_per_token,
            language_ids=dict(talker["codec_language_id"]),
            speaker_dialects=dict(talker.get("spk_is_dialect", {})),
            talker_sampling=_talker_sampling(sampling),
            predictor_sampling=_predictor_sampling(sampling),
        )

    def build_prompt(self, request: SpeechRequest, model: ModelInfo, tokenize: Tokenize) -> dict[str, Any]:
        assert isinstance(model, Qwen3TtsInfo)
        return build_prompt(request, model, tokenize)


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


QWEN3_TTS = Qwen3Tts()
