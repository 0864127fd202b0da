"""Imported by the fork server only: everything a stage process would import for itself.

Must leave no thread running and CUDA untouched, or a fork of it could hang.
"""

import importlib
import logging

logging.getLogger("vllm").setLevel(logging.WARNING)

import vllm_omni.engine.stage_engine_core_proc  # noqa: E402
import vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_code2wav  # noqa: E402
import vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_talker  # noqa: E402
import vllm_omni.reasoning  # noqa: E402, F401
from vllm.platforms import current_platform  # noqa: E402

importlib.import_module(
    "backend.cpu_worker" if current_platform.is_cpu() else "vllm_omni.worker.gpu_ar_worker"
)
