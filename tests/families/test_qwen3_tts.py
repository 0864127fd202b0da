import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.checkpoint import Variant
from backend.contract import Task
from backend.families.family import CheckpointError, ModelInfo
from backend.families.qwen3_prompt import Qwen3TtsInfo
from backend.families.registry import read_model_info

TinyCheckpoint = Callable[[Variant], Path]
LANGUAGES = {
    *("Auto", "Chinese", "English", "German", "Italian", "Portuguese"),
    *("Spanish", "Japanese", "Korean", "French", "Russian"),
}


@pytest.fixture
def configs(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Path:
    """A folder with the config files of the tiny custom_voice checkpoint, to be spoilt."""
    source = tiny_checkpoint("custom_voice")
    for name in ("config.json", "speech_tokenizer/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / name, tmp_path / name)
    return tmp_path


def change(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | values))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_model_info(folder)
    sentence = str(caught.value)
    assert sentence.startswith(f"{folder} is not a checkpoint")
    assert sentence.endswith("Qwen/Qwen3-TTS-12Hz-0.6B-Base.")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("variant", "task", "supports_instruction"),
    [
        ("base", Task.VOICE_CLONE, False),
        ("custom_voice", Task.NAMED_SPEAKER, True),
        ("voice_design", Task.VOICE_DESIGN, True),
    ],
)
def test_each_variant_tells_its_task(
    variant: Variant, task: Task, supports_instruction: bool, tiny_checkpoint: TinyCheckpoint
) -> None:
    model = read_model_info(tiny_checkpoint(variant))
    assert (model.tasks, model.supports_instruction) == ((task,), supports_instruction)
    assert (model.sample_rate_hz, model.samples_per_frame, model.frame_rate_hz) == (24_000, 1920, 12.5)
    assert model.decoder_window_frames == 72


@pytest.mark.parametrize("variant", ["base", "custom_voice", "voice_design"])
def test_dialects_are_no_languages_to_choose(variant: Variant, tiny_checkpoint: TinyCheckpoint) -> None:
    languages = read_model_info(tiny_checkpoint(variant)).languages
    assert languages[0] == "Auto"
    if variant == "custom_voice":
        assert set(languages) == LANGUAGES


def test_only_a_checkpoint_with_named_speakers_has_speakers(tiny_checkpoint: TinyCheckpoint) -> None:
    named = read_model_info(tiny_checkpoint("custom_voice"))
    assert isinstance(named, Qwen3TtsInfo)
    assert {"vivian", "ryan", "eric"} <= set(named.speakers)
    assert named.speaker_dialects["eric"] == "sichuan_dialect"
    assert read_model_info(tiny_checkpoint("base")).speakers == ()
    assert read_model_info(tiny_checkpoint("voice_design")).speakers == ()


def test_sizes_come_from_the_weight_files_and_the_layer_counts(tiny_checkpoint: TinyCheckpoint) -> None:
    folder = tiny_checkpoint("base")
    model = read_model_info(folder)
    assert model.talker_bytes == (folder / "model.safetensors").stat().st_size
    assert model.decoder_bytes == (folder / "speech_tokenizer" / "model.safetensors").stat().st_size
    talker = json.loads((folder / "config.json").read_text())["talker_config"]
    layers, heads, width = (talker[key] for key in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    assert model.kv_bytes_per_token == layers * 2 * heads * width * 2


def test_the_published_small_size_takes_no_instruction_for_named_speakers(configs: Path) -> None:
    def info(**values: Any) -> ModelInfo:
        change(configs / "config.json", **values)
        return read_model_info(configs)

    assert info(tts_model_size="1b7").supports_instruction is True
    assert info(tts_model_size="0b6").supports_instruction is False
    assert info(tts_model_type="voice_design").supports_instruction is True


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    assert "config.json cannot be read" in refusal(tmp_path)


def test_a_checkpoint_without_its_speech_tokenizer_is_refused(configs: Path) -> None:
    (configs / "speech_tokenizer" / "config.json").unlink()
    assert "speech_tokenizer/config.json cannot be read" in refusal(configs)


@pytest.mark.parametrize("content", ["{", "\udcff", ""], ids=["cut off", "not UTF-8", "empty"])
def test_a_config_that_is_not_json_is_refused(content: str, configs: Path) -> None:
    (configs / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "config.json cannot be read" in refusal(configs)


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"model_type": "qwen3_tts"}'])
def test_a_config_of_another_shape_is_refused(content: str, configs: Path) -> None:
    (configs / "config.json").write_text(content)
    refusal(configs)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"model_type": "qwen3"}),
        ("config.json", {"tts_model_type": "singing"}),
        ("config.json", {"talker_config": {}}),
        ("config.json", {"talker_config": None}),
        ("speech_tokenizer/config.json", {"model_type": "qwen3_tts_tokenizer_25hz"}),
        ("speech_tokenizer/config.json", {"decoder_config": []}),
    ],
)
def test_another_family_s_checkpoint_is_refused(file: str, values: dict[str, Any], configs: Path) -> None:
    change(configs / file, **values)
    refusal(configs)


def test_sampling_is_the_published_one_where_the_checkpoint_does_not_say(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint("base"), folder)
    file = folder / "generation_config.json"
    file.unlink()
    plain = read_model_info(folder)
    assert plain.talker_sampling == {
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
    }
    assert plain.predictor_sampling == {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0}
    file.write_text('{"temperature": null, "do_sample": false, "top_k": 0, "subtalker_dosample": false}')
    greedy = read_model_info(folder)
    assert greedy.talker_sampling == plain.talker_sampling | {"temperature": 0.0, "top_k": 0}
    assert greedy.predictor_sampling == plain.predictor_sampling | {"do_sample": False}
    file.write_text('{"temperature": "warm"}')
    with pytest.raises(CheckpointError, match=r"must have a number for temperature, not 'warm'\."):
        read_model_info(folder)
