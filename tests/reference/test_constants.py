"""Every number that our side takes from a file or has by heart is the one the loaded reference goes by."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend import prompt
from backend.checkpoint import BUNDLED_DIR, Variant, configs
from backend.families.qwen3_prompt import PLACEHOLDER_TOKEN, Qwen3TtsInfo
from backend.families.registry import read_model_info
from backend.reference_audio import ONSET_SILENCE_S, SAMPLE_RATE_HZ
from backend.stage_config import load_stage_config, profile_names
from tests.reference.captures import BUNDLED, TINY, capture, manifest

Checkpoints = Callable[[Variant], Path]


@pytest.fixture(params=[BUNDLED, TINY])
def both(request: pytest.FixtureRequest, tiny_checkpoint: Checkpoints) -> tuple[dict[str, Any], Qwen3TtsInfo]:
    folder = BUNDLED_DIR if request.param == BUNDLED else tiny_checkpoint("custom_voice")
    model = read_model_info(folder)
    assert isinstance(model, Qwen3TtsInfo)
    return manifest(request.param)["constants"], model


def test_rates_and_hop_are_the_reference_s(both: tuple[dict[str, Any], Qwen3TtsInfo]) -> None:
    reference, ours = both
    assert ours.samples_per_frame == reference["samples_per_frame"] == reference["clip_samples_per_frame"]
    assert ours.sample_rate_hz == reference["output_sample_rate_hz"]
    assert reference["input_sample_rate_hz"] == SAMPLE_RATE_HZ
    assert ours.frame_rate_hz == 12.5
    assert ours.decoder_window_frames == reference["decoder_window_frames"]


def test_code_groups_and_ids_are_the_reference_s(both: tuple[dict[str, Any], Qwen3TtsInfo]) -> None:
    reference, ours = both
    assert (reference["code_groups"], reference["code_groups"]) == (configs.CODE_GROUPS, ours.codebooks)
    assert reference["codes_per_group"] == configs.CODES_PER_GROUP == prompt.MAX_TOP_K
    assert reference["talker_rows"] == configs.CODEC_ROWS
    assert reference["codec_ids"]["eos_token"] == configs.END_OF_SPEECH_ID
    assert reference["codec_ids"]["pad"] == PLACEHOLDER_TOKEN
    assert ours.language_ids == reference["language_ids"]
    assert ours.speaker_dialects == reference["speaker_dialects"]
    assert set(ours.speakers) == set(reference["speaker_ids"])


def test_the_pipeline_stops_at_the_reference_s_end_of_speech() -> None:
    pytest.importorskip("vllm_omni")
    from vllm_omni.model_executor.models.qwen3_tts.pipeline import QWEN3_TTS_PIPELINE

    generation = capture(BUNDLED, "x_vector").facts["generation"]
    constraints = QWEN3_TTS_PIPELINE.stages[0].sampling_constraints
    assert constraints["stop_token_ids"] == [generation["eos_token_id"]]


def test_sampling_defaults_are_the_reference_s(both: tuple[dict[str, Any], Qwen3TtsInfo]) -> None:
    reference, ours = both
    defaults = reference["sampling_defaults"]
    assert ours.talker_sampling == {name: defaults[name] for name in ours.talker_sampling}
    names = {"do_sample": "dosample"}
    assert ours.predictor_sampling == {
        name: defaults[f"subtalker_{names.get(name, name)}"] for name in ours.predictor_sampling
    }


@pytest.mark.parametrize("profile", [name for name in profile_names() if "audio8" not in name])
def test_every_profile_has_the_reference_s_least_tokens(profile: str, tmp_path: Path) -> None:
    """It is in no code of vLLM-Omni: without it the first token may end a run, and nothing is heard."""
    generation = capture(BUNDLED, "x_vector").facts["generation"]
    config = load_stage_config(profile, None)
    assert config.talker.default_sampling_params is not None
    assert config.talker.default_sampling_params.min_tokens == generation["min_new_tokens"]
    written = tmp_path / "deploy.yaml"
    config.write_deploy_file(written, talker_sampling=read_model_info(BUNDLED_DIR).talker_sampling)
    sampling = yaml.safe_load(written.read_text())["stages"][0]["default_sampling_params"]
    assert {n: sampling[n] for n in ("temperature", "top_k", "top_p", "repetition_penalty")} == {
        n: manifest(BUNDLED)["constants"]["sampling_defaults"][n]
        for n in ("temperature", "top_k", "top_p", "repetition_penalty")
    }


def test_a_clip_is_captured_with_the_silence_that_we_add() -> None:
    assert manifest(BUNDLED)["onset_silence_s"] == ONSET_SILENCE_S
