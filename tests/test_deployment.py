import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend import deployment
from backend.checkpoint import BUNDLED_DIR, Variant
from backend.contract import SpeechError, Task
from backend.deployment import Deployment, DeploymentError, check_early, needs_of, plan
from backend.families.family import CheckpointError
from backend.families.registry import read_model_info
from backend.memory_budget import GIB
from backend.settings import GPU_MODEL, Settings
from backend.stage_config import PROFILE_DIR, load_stage_config

TinyCheckpoint = Callable[[Variant], Path]


def settings(**values: Any) -> Settings:
    return Settings(**values, _cli_parse_args=False)


def sentence_of(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.fixture
def hub_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def on_cpu() -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("vLLM here is made for a GPU")


def tiny_deployment(folder: Path, *, on_gpu: bool) -> Deployment:
    model = read_model_info(folder)
    stages = load_stage_config("gpu" if on_gpu else "cpu", needs_of(model))
    return Deployment("tiny", model, stages, on_gpu, "some device", "")


def written(made: Deployment, folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(whole file, talker's stage, decoder's stage) of the deploy file."""
    file = folder / "deploy.yaml"
    made.write_deploy_file(file)
    content = yaml.safe_load(file.read_text())
    talker, decoder = content["stages"]
    return content, talker, decoder


@pytest.mark.parametrize(
    ("wanted", "sees_cuda", "is_cpu", "on_gpu"),
    [
        ("auto", True, False, True),
        ("auto", False, True, False),
        ("cuda", True, False, True),
        ("cpu", False, True, False),
    ],
)
def test_the_device_is_the_one_vllm_is_made_for(
    wanted: str, sees_cuda: bool, is_cpu: bool, on_gpu: bool
) -> None:
    assert deployment._on_gpu(wanted, sees_cuda, is_cpu) is on_gpu


@pytest.mark.parametrize(
    ("wanted", "sees_cuda", "is_cpu", "advice"),
    [
        ("cuda", False, True, "run with --device cpu instead"),
        ("cuda", False, False, "check nvidia-smi"),
        ("auto", False, False, "check nvidia-smi"),
        ("cpu", True, False, "needs requirements-cpu.txt"),
        ("cpu", False, False, "needs requirements-cpu.txt"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_to_do(
    wanted: str, sees_cuda: bool, is_cpu: bool, advice: str
) -> None:
    with pytest.raises(DeploymentError) as caught:
        deployment._on_gpu(wanted, sees_cuda, is_cpu)
    assert advice in sentence_of(caught.value)


@pytest.mark.parametrize(
    "model", ["/no/such/folder", "./missing", "../missing", "missing", "a/b/c", "~/models/tts"]
)
def test_a_path_that_is_not_there_is_refused_early(model: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        check_early(settings(model=model))
    assert sentence_of(caught.value).startswith(f"There is no folder {model}")


def test_a_folder_that_is_no_checkpoint_is_refused_early(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_early(settings(model=str(tmp_path)))
    assert str(tmp_path) in sentence_of(caught.value)


def test_a_bad_stage_file_is_refused_early(tmp_path: Path) -> None:
    bad = tmp_path / "mine.yaml"
    bad.write_text("stages: []\nsurprise: 1\n")
    with pytest.raises(SpeechError, match=r"mine\.yaml.*surprise"):
        check_early(settings(stage_config=str(bad)))


@pytest.mark.parametrize("model", [None, "Qwen/Qwen3-TTS-12Hz-0.6B-Base", "some.one/a_model-1.7B"])
def test_a_hub_id_is_left_to_the_hub(model: str | None) -> None:
    check_early(settings(model=model))


def test_a_checkpoint_folder_passes_the_early_check(tiny_checkpoint: TinyCheckpoint) -> None:
    check_early(settings(model=str(tiny_checkpoint("base")), stage_config="cpu"))


@pytest.mark.usefixtures("hub_offline", "on_cpu")
def test_a_model_the_hub_does_not_give_is_refused() -> None:
    with pytest.raises(DeploymentError) as caught:
        plan(settings(model="nobody/no-such-model"))
    assert sentence_of(caught.value).startswith("nobody/no-such-model is neither a folder here nor a model")


@pytest.mark.usefixtures("hub_offline")
def test_without_the_hub_a_gpu_speaks_the_bundled_checkpoint_and_says_why() -> None:
    name, folder, notice = deployment._find_model(None, on_gpu=True)
    assert (name, folder) == ("bundled", BUNDLED_DIR)
    assert GPU_MODEL in notice
    assert "could not be had from the hub" in notice


def test_a_cpu_speaks_the_bundled_checkpoint_without_asking_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_download(model_id: str) -> Path:
        raise AssertionError(model_id)

    monkeypatch.setattr(deployment, "_download", no_download)
    name, folder, notice = deployment._find_model(None, on_gpu=False)
    assert (name, folder, notice) == ("bundled", BUNDLED_DIR, "")


def test_a_hub_model_is_downloaded_and_a_folder_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def download(model_id: str) -> Path:
        asked.append(model_id)
        return tmp_path / "snapshot"

    monkeypatch.setattr(deployment, "_download", download)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert deployment._find_model("here", True) == ("here", tmp_path / "here", "")
    assert deployment._find_model("a/b", True) == ("a/b", tmp_path / "snapshot", "")
    assert deployment._find_model(None, True) == (GPU_MODEL, tmp_path / "snapshot", "")
    assert asked == ["a/b", GPU_MODEL]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("variant", "task"), [("base", Task.VOICE_CLONE), ("custom_voice", Task.NAMED_SPEAKER)]
)
def test_the_plan_for_a_cpu(variant: Variant, task: Task, tiny_checkpoint: TinyCheckpoint) -> None:
    folder = tiny_checkpoint(variant)
    made = plan(settings(model=str(folder)))
    assert (made.model.tasks, made.on_gpu) == ((task,), False)
    assert made.model_name == str(folder)
    assert made.device == f"CPU, {len(os.sched_getaffinity(0))} cores"
    assert made.stage_config.source.name == "cpu.yaml"
    assert "random and untrained" in made.untrained_note


@pytest.mark.usefixtures("on_cpu")
def test_a_trained_checkpoint_carries_no_note(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    for file in tiny_checkpoint("base").iterdir():
        if file.name != "untrained.json":
            (tmp_path / file.name).symlink_to(file)
    assert plan(settings(model=str(tmp_path))).untrained_note == ""


@pytest.mark.usefixtures("on_cpu")
def test_a_stage_configuration_asked_for_is_the_one_used(tiny_checkpoint: TinyCheckpoint) -> None:
    made = plan(settings(model=str(tiny_checkpoint("base")), stage_config="gpu_throughput"))
    assert made.stage_config.source.name == "gpu_throughput.yaml"


def test_on_a_cpu_each_stage_gets_our_executor_and_its_own_cores(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6, 8})
    content, talker, decoder = written(tiny_deployment(tiny_checkpoint("base"), on_gpu=False), tmp_path)
    executors = {
        section.get("distributed_executor_backend", content.get("distributed_executor_backend"))
        for section in (talker, decoder)
    }
    assert executors == {"backend.cpu_executor.CpuExecutor"}
    assert talker["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "0,2,4"
    assert decoder["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "6,8"
    assert talker["gpu_memory_utilization"] + decoder["gpu_memory_utilization"] <= 1
    # Twice the checkpoint's bfloat16: the talker runs in float32 there.
    assert talker["dtype"] == "float32"
    needed = 2 * read_model_info(tiny_checkpoint("base")).kv_bytes_per_token * 4096 * 4
    assert needed < talker["kv_cache_memory_bytes"] < 1.2 * needed


def test_with_one_core_both_stages_share_it(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    _, talker, decoder = written(tiny_deployment(tiny_checkpoint("base"), on_gpu=False), tmp_path)
    assert talker["env"] == decoder["env"] == {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def test_on_a_gpu_each_stage_gets_its_share_of_the_card(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    monkeypatch.setattr(deployment, "_gpu_memory_bytes", lambda: 24 * GIB)
    content, talker, decoder = written(tiny_deployment(tiny_checkpoint("base"), on_gpu=True), tmp_path)
    shares = talker["gpu_memory_utilization"], decoder["gpu_memory_utilization"]
    assert min(shares) * 24 > 1.4
    assert sum(shares) * 24 < 6
    assert "cpu_executor" not in str(content)


def test_a_card_too_small_for_the_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    monkeypatch.setattr(deployment, "_gpu_memory_bytes", lambda: 6 * GIB)
    with pytest.raises(SpeechError, match=r"needs a GPU with at least .* this one has 6\.0 GiB"):
        tiny_deployment(tiny_checkpoint("base"), on_gpu=True).write_deploy_file(tmp_path / "deploy.yaml")


def test_another_model_on_the_hub_is_refused_before_its_weights_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    def download(model_id: str, allow_patterns: list[str] | None = None) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(CheckpointError, match="not a checkpoint of Qwen3-TTS"):
        deployment._find_model("someone/llama", on_gpu=True)
    assert asked == [["config.json", "speech_tokenizer/config.json"]]


def test_a_checkpoint_is_sampled_as_it_says_and_a_stage_configuration_wins(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    _, talker, _ = written(tiny_deployment(BUNDLED_DIR, on_gpu=False), tmp_path)
    own = json.loads((BUNDLED_DIR / "generation_config.json").read_text())
    sampling, predictor = talker["default_sampling_params"], talker["subtalker_sampling_params"]
    for key in ("temperature", "top_k", "top_p", "repetition_penalty"):
        assert sampling[key] == own[key]
    assert sampling["max_tokens"] == 2048
    assert predictor == {
        "do_sample": own["subtalker_dosample"],
        "temperature": own["subtalker_temperature"],
        "top_k": own["subtalker_top_k"],
        "top_p": own["subtalker_top_p"],
    }
    assert tiny_deployment(BUNDLED_DIR, on_gpu=False).predictor_defaults == (
        own["subtalker_temperature"],
        own["subtalker_top_k"],
    )
    mine = tmp_path / "mine.yaml"
    text = (PROFILE_DIR / "cpu.yaml").read_text()
    mine.write_text(text.replace("min_tokens: 2\n", "min_tokens: 2\n      temperature: 1.3\n", 1))
    made = replace(
        tiny_deployment(tiny_checkpoint("base"), on_gpu=False), stage_config=load_stage_config(mine, None)
    )
    _, talker, _ = written(made, tmp_path)
    assert talker["default_sampling_params"]["temperature"] == 1.3
    assert talker["default_sampling_params"]["top_k"] == 50
