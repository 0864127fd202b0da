from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from backend.chunk_ramp import ramp_from_first_chunk
from backend.stage_config import PROFILE_DIR, StageConfigError, StageNeeds, load_stage_config, profile_names
from backend.stage_schema import Stage, StageConfig

QWEN3_TTS = StageNeeds(decoder_window_frames=72, codebooks=16, grows_chunks=True)
QWEN3_PROFILES = ("cpu", "gpu", "gpu_low_latency", "gpu_throughput")
AUDIO8_PROFILES = ("audio8_cpu", "audio8_gpu")
GPU_TEXT = (PROFILE_DIR / "gpu.yaml").read_text()
# Sampling is the checkpoint's own there; a person may write their own beside it.
OWN_SAMPLING = """min_tokens: 2
      temperature: 0.9
      repetition_penalty: 1.05
    subtalker_sampling_params: {do_sample: true, top_p: 1.0}
"""
OWN_TEXT = GPU_TEXT.replace("min_tokens: 2\n", OWN_SAMPLING, 1)


def edited(tmp_path: Path, old: str, new: str) -> Path:
    """The GPU profile, with sampling of its own, with one piece of text replaced."""
    assert old in OWN_TEXT
    path = tmp_path / "mine.yaml"
    path.write_text(OWN_TEXT.replace(old, new, 1))
    return path


def load(path: Path | str, needs: StageNeeds | None = QWEN3_TTS) -> StageConfig:
    return load_stage_config(path, needs)


def refusal(path: Path | str, needs: StageNeeds | None = QWEN3_TTS) -> str:
    with pytest.raises(StageConfigError) as refused:
        load(path, needs)
    message = str(refused.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def highest_gapless_rtf(frames: tuple[int, ...]) -> float:
    """The slowest generation at which every chunk is made while those before it play."""
    return min(sum(frames[:k]) / sum(frames[1 : k + 1]) for k in range(1, len(frames)))


@pytest.mark.parametrize("profile", QWEN3_PROFILES)
def test_every_profile_loads_by_name_and_by_path(profile: str) -> None:
    by_path = load(PROFILE_DIR / f"{profile}.yaml")
    assert load(profile) == by_path
    assert by_path.source == PROFILE_DIR / f"{profile}.yaml"
    assert by_path.chunking.codec_left_context_frames == 72


def test_profiles_are_the_files_of_the_folder() -> None:
    assert profile_names() == (*AUDIO8_PROFILES, *QWEN3_PROFILES)


def test_vllm_omnis_own_file_loads() -> None:
    deploy = pytest.importorskip("vllm_omni").__path__[0]
    config = load(Path(deploy) / "deploy" / "qwen3_tts.yaml")
    assert config.chunk_schedule_frames == (1, 25)
    assert config.max_concurrency == 64


def test_keys_are_ones_vllm_omni_knows() -> None:
    stage_config = pytest.importorskip("vllm_omni.config.stage_config")
    # Engine options that a deploy file passes through to the stage.
    passed_on = {"dtype", "kv_cache_memory_bytes", "trust_remote_code", "enable_prefix_caching"}
    passed_on |= {"enable_chunked_prefill", "distributed_executor_backend"}
    assert set(Stage.model_fields) - passed_on <= set(stage_config.StageDeployConfig.__dataclass_fields__)
    assert set(StageConfig.model_fields) <= set(stage_config.DeployConfig.__dataclass_fields__)


def test_concurrency_is_what_both_stages_hold(tmp_path: Path) -> None:
    path = edited(
        tmp_path, "    dtype: bfloat16\n    max_num_seqs: 16", "    dtype: bfloat16\n    max_num_seqs: 3"
    )
    assert load(path).max_concurrency == 3


def test_profiles_stream_without_gaps_up_to_the_rtf_they_promise() -> None:
    promised = {"gpu": 0.16, "gpu_low_latency": 0.5, "gpu_throughput": 0.6, "cpu": 0.75}
    for profile, rtf in promised.items():
        schedule = load(profile).chunk_schedule_frames
        assert schedule[-1] == 25
        assert highest_gapless_rtf(schedule) >= rtf, profile


def test_first_chunk_of_a_request_starts_the_schedule() -> None:
    gpu, cpu = load("gpu"), load("cpu")
    assert gpu.max_first_chunk_frames == cpu.max_first_chunk_frames == 25
    assert ramp_from_first_chunk(1, gpu.chunk_schedule_frames, 25) == (1, 25)
    assert ramp_from_first_chunk(8, cpu.chunk_schedule_frames, 25) == (8, 8, 8, 8, 10, 14, 19, 25)
    assert ramp_from_first_chunk(25, cpu.chunk_schedule_frames, 25) == (25,)
    assert ramp_from_first_chunk(999, cpu.chunk_schedule_frames, 25) == (25,)


@pytest.mark.parametrize("first", range(1, 26))
def test_chunks_never_shrink(first: int) -> None:
    schedule = ramp_from_first_chunk(first, load("cpu").chunk_schedule_frames, 25)
    assert schedule[0] == first
    assert all(a <= b for a, b in pairwise(schedule))


def test_a_ramp_under_the_second_runner_fixes_the_first_chunk() -> None:
    config = load("gpu_low_latency")
    assert config.max_first_chunk_frames == 0
    assert config.chunk_schedule_frames == (1, 2, 4, 8, 16, 25)


def test_without_async_chunks_nothing_is_streamed(tmp_path: Path) -> None:
    config = load(edited(tmp_path, "async_chunk: true", "async_chunk: false"))
    assert config.chunk_schedule_frames == ()
    assert config.max_first_chunk_frames == 0


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("max_num_seqs: 16", "max_num_seq: 16", ("stages[0].max_num_seq ", "did you mean max_num_seqs?")),
        ("model_runner: v2", "zzz: 1", ("zzz is not a known key", "model_runner, async_chunk")),
        ("codec_chunk_frames: 25", "codec_chunk_frame: 25", ("did you mean codec_chunk_frames?",)),
        # Of upstream's code predictor, in whose place is ours.
        (
            "codec_chunk_frames: 25",
            "codec_chunk_frames: 25\n      code_predictor_prefix_graphs: true",
            ("code_predictor_prefix_graphs is not a known key",),
        ),
        ("temperature: 0.9", "temprature: 0.9", ("did you mean temperature?",)),
        ("do_sample: true", "do_sampl: true", ("did you mean do_sample?",)),
        ("name: SharedMemoryConnector", "nam: SharedMemoryConnector", ("did you mean name?",)),
        ("model_runner: v2", "model_runner: v3", ("model_runner must be 'v1' or 'v2', not 'v3'.",)),
        ("max_num_seqs: 16", "max_num_seqs: 0", ("max_num_seqs must be at least 1, not 0.",)),
        ("max_num_seqs: 16", "max_num_seqs: many", ("must be a whole number, not 'many'.",)),
        ("max_num_seqs: 16", "max_num_seqs: 1.5", ("must be a whole number, not 1.5.",)),
        ("top_p: 1.0", "top_p: 1.5", ("top_p must be at most 1", "not 1.5.")),
        ("do_sample: true", "do_sample: maybe", ("do_sample must be true or false, not 'maybe'.",)),
        ('devices: "0"', "devices: 0", ("devices must be text (put it in quotes), not 0.",)),
        (
            "codec_chunk_frames: 25",
            "codec_chunk_frames: 0",
            ("codec_chunk_frames must be at least 1, not 0.",),
        ),
        (
            "codec_left_context_frames: 72",
            "codec_left_context_frames: 25",
            ("must be at least 72", "not 25."),
        ),
        (
            "initial_codec_chunk_frames: 4",
            "initial_codec_chunk_frames: 30",
            ("at most codec_chunk_frames (25)",),
        ),
        (
            "initial_codec_chunk_frames: 4",
            "codec_chunk_ramp: [4, 8, 6, 25]",
            ("never shrink", "[4, 8, 6, 25]"),
        ),
        (
            "initial_codec_chunk_frames: 4",
            "codec_chunk_ramp: [4, 50]",
            ("codec_chunk_frames (25)", "[4, 50]"),
        ),
        ("initial_codec_chunk_frames: 4", "codec_chunk_ramp: [0, 25]", ("from 1 up", "[0, 25]")),
        ("initial_codec_chunk_frames: 4", "codec_chunk_ramp: [4]", ("two or more", "[4]")),
        ("max_num_batched_tokens: 65536", "max_num_batched_tokens: 65530", ("multiple of 16", "65530")),
        ("max_num_batched_tokens: 65536", "max_num_batched_tokens: 1536", ("at least 1552", "97 frames")),
        ("max_num_batched_tokens: 512", "max_num_batched_tokens: 8", ("at least its max_num_seqs (16)",)),
        ("max_tokens: 4096", "max_tokens: 5000", ("at most its max_model_len (4096)", "5000")),
        ("to_stage_1: codes", "to_stage_1: cods", ("names the connector cods", "defines codes.")),
        ("from_stage_0: codes", "from_stage_0: other", ("names the connector other",)),
        ("- stage_id: 1", "- stage_id: 2", ("stage_id 0 (talker) and 1 (decoder)", "[0, 2]")),
        ("- stage_id: 1", "- stage_id: 0", ("[0, 0]",)),
        ("max_model_len: 4096", "max_model_len: 4096\n    max_num_seqs: 8", ("max_num_seqs is given twice",)),
        ("async_chunk: true", "async_chunk: [true", ("is not valid YAML",)),
        ("async_chunk: true", "async_chunk:\ttrue: x", ("is not valid YAML",)),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, parts: tuple[str, ...]) -> None:
    path = edited(tmp_path, old, new)
    message = refusal(path)
    assert message.startswith(f"{path}, line "), message
    assert all(part in message for part in parts), message


def test_the_line_is_that_of_the_key(tmp_path: Path) -> None:
    path = edited(tmp_path, "repetition_penalty: 1.05", "repetition_penalty: -1")
    assert f"line {line_of(path, 'repetition_penalty: -1')}: " in refusal(path)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = edited(tmp_path, "    max_model_len: 4096\n", "")
    message = refusal(path)
    assert "stages[0].max_model_len is missing." in message
    assert f"line {line_of(path, '- stage_id: 0')}: " in message


def test_a_missing_stage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GPU_TEXT[: GPU_TEXT.index("  # The decoder:")])
    assert "must be exactly stage_id 0 (talker) and 1 (decoder), not [0]." in refusal(path)


def test_stages_read_and_write_the_same_connector(tmp_path: Path) -> None:
    data = yaml.safe_load(GPU_TEXT)
    data["connectors"]["second"] = data["connectors"]["codes"]
    data["stages"][1]["input_connectors"] = {"from_stage_0": "second"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    assert "reads from second but the talker writes to codes" in refusal(path)


@pytest.mark.parametrize(("fractions", "fits"), [((0.6, 0.4), True), ((0.6, 0.5), False)])
def test_memory_fractions_on_one_card_add_up_to_one(
    tmp_path: Path, fractions: tuple[float, float], fits: bool
) -> None:
    data = yaml.safe_load(GPU_TEXT)
    for stage, fraction in zip(data["stages"], fractions, strict=True):
        stage["gpu_memory_utilization"] = fraction
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    if fits:
        assert load(path).decoder.gpu_memory_utilization == 0.4
        return
    assert "add up to at most 1, not 1.10." in refusal(path)
    data["stages"][1]["devices"] = "1"
    path.write_text(yaml.safe_dump(data))
    assert load(path).decoder.devices == "1"


def test_left_context_follows_the_checkpoints_decoder(tmp_path: Path) -> None:
    assert "must be at least 100" in refusal("gpu", replace(QWEN3_TTS, decoder_window_frames=100))
    assert load("gpu", replace(QWEN3_TTS, decoder_window_frames=16)).chunking.codec_left_context_frames == 72
    path = edited(tmp_path, "codec_left_context_frames: 72", "codec_left_context_frames: 50")
    assert load(path, replace(QWEN3_TTS, decoder_window_frames=50)).chunking.codec_left_context_frames == 50
    assert load(path, None).chunking.codec_left_context_frames == 50


def test_a_model_with_other_frames_gets_other_limits() -> None:
    audio8 = StageNeeds(decoder_window_frames=25, codebooks=10, grows_chunks=False)
    for profile in AUDIO8_PROFILES:
        assert load(profile, audio8).max_first_chunk_frames == 25
    assert "must be a multiple of 10, the codes in a frame" in refusal("gpu", audio8)


def test_a_ramp_is_refused_where_the_model_knows_none() -> None:
    sentence = refusal("cpu", replace(QWEN3_TTS, grows_chunks=False))
    line = line_of(PROFILE_DIR / "cpu.yaml", "codec_chunk_ramp: [4")
    assert f"cpu.yaml, line {line}: codec_chunk_ramp is not for this model; set" in sentence


@pytest.mark.parametrize("text", ["", "- 1\n", "just words\n", "# nothing\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert "must hold a YAML mapping" in refusal(path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in refusal(path)
    path.write_bytes(b"a: \x00")
    assert "a character YAML does not allow" in refusal(path)


def test_an_unknown_profile_lists_the_known_ones() -> None:
    assert "audio8_gpu, cpu, gpu, gpu_low_latency, gpu_throughput" in refusal("fast")


def test_the_written_file_fills_gaps_and_keeps_what_the_file_says(tmp_path: Path) -> None:
    path = edited(tmp_path, "    max_num_seqs: 16", "    max_num_seqs: 16\n    gpu_memory_utilization: 0.5")
    written = tmp_path / "deploy.yaml"
    load(path).write_deploy_file(
        written,
        memory_fractions={0: 0.2, 1: 0.1},
        kv_cache_bytes={0: 1000},
        stage_env={1: {"VLLM_CPU_OMP_THREADS_BIND": "1"}},
    )
    talker, decoder = yaml.safe_load(written.read_text())["stages"]
    assert talker["gpu_memory_utilization"] == 0.5
    assert talker["kv_cache_memory_bytes"] == 1000
    assert "env" not in talker
    assert decoder["gpu_memory_utilization"] == 0.1
    assert "kv_cache_memory_bytes" not in decoder
    assert decoder["env"] == {"VLLM_CPU_OMP_THREADS_BIND": "1"}


@pytest.mark.parametrize("profile", profile_names())
def test_the_written_file_says_what_the_profile_says(tmp_path: Path, profile: str) -> None:
    written = tmp_path / "deploy.yaml"
    load(profile, None).write_deploy_file(written)
    assert yaml.safe_load(written.read_text()) == yaml.safe_load(
        (PROFILE_DIR / f"{profile}.yaml").read_text()
    )


@pytest.mark.parametrize("profile", profile_names())
def test_vllm_omni_reads_the_written_file(tmp_path: Path, profile: str) -> None:
    stage_config = pytest.importorskip("vllm_omni.config.stage_config")
    written = tmp_path / "deploy.yaml"
    config = load(profile, None)
    config.write_deploy_file(written, memory_fractions={0: 0.2, 1: 0.1})
    deploy = stage_config.load_deploy_config(written)
    assert deploy.model_runner == config.model_runner
    assert [stage.max_num_seqs for stage in deploy.stages] == [s.max_num_seqs for s in config.stages]
    # Passed on as engine options: exactly the ones that are no field of a stage.
    assert set(deploy.stages[0].engine_extras) <= {"dtype", "trust_remote_code", "enable_prefix_caching"}
