"""Imported by the fork server only: everything a stage process would import for itself.

Must leave no thread running, or a fork of it could hang.
"""

import numba  # noqa: F401
import vllm_omni.engine.stage_engine_core_proc
import vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_code2wav
import vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_talker
import vllm_omni.reasoning  # noqa: F401

import backend.cpu_worker
import backend.talker  # noqa: F401
