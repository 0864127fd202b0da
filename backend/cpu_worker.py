"""CPU workers and model runners for both stages: vLLM-Omni's runners over vLLM's CPU base classes."""

from typing import Any

import torch
import vllm.v1.worker.cpu_worker
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
from vllm_omni.worker.gpu_generation_model_runner import GPUGenerationModelRunner
from vllm_omni.worker.mixins import OmniWorkerMixin

_TALKER_MTP_BUFFERS = ("talker_mtp_input_ids", "talker_mtp_inputs_embeds", "last_talker_hidden", "text_step")


class CpuARModelRunner(GPUARModelRunner, CPUModelRunner):
    """Stage 0: the talker with its code predictor."""

    def _init_talker_mtp(self) -> None:
        if self.compilation_config.max_cudagraph_capture_size is None:
            self.compilation_config.max_cudagraph_capture_size = 0
        super()._init_talker_mtp()
        # Upstream's Qwen3-TTS talker, which benchmarks compare ours with, fixes its embeddings to bfloat16.
        if hasattr(self.model, "_prompt_builder"):
            self.model._embedding_dtype = self.dtype
            self.model._prompt_builder._embedding_dtype = self.dtype
        # CPUModelRunner makes device buffers views of their host halves once, in its
        # constructor; these are made after it, on model load.
        for name in _TALKER_MTP_BUFFERS:
            buffer = getattr(self, name, None)
            if isinstance(buffer, CpuGpuBuffer):
                buffer.gpu = buffer.cpu


class CpuGenerationModelRunner(GPUGenerationModelRunner, CPUModelRunner):
    """Stage 1: the codec decoder."""


class _CpuWorker(OmniWorkerMixin, CPUWorker):
    model_runner_cls: type[Any]

    def init_device(self) -> None:
        # Some models pin what they will copy to a device, which PyTorch refuses to do where there is none.
        torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # type: ignore
        # CPUWorker.init_device names its runner class directly and has no hook for another.
        self.use_v2_model_runner = False
        module: Any = vllm.v1.worker.cpu_worker
        upstream_runner_cls = module.CPUModelRunner
        module.CPUModelRunner = self.model_runner_cls
        try:
            super().init_device()
        finally:
            module.CPUModelRunner = upstream_runner_cls


class CpuARWorker(_CpuWorker):
    model_runner_cls = CpuARModelRunner


class CpuGenerationWorker(_CpuWorker):
    model_runner_cls = CpuGenerationModelRunner
