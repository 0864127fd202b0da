"""The schema of a stage configuration: the part of vLLM-Omni's deploy file this model uses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from backend.chunk_ramp import ramp_from_first_chunk

TALKER_STAGE = 0
DECODER_STAGE = 1


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ConnectorExtra(Section):
    codec_chunk_frames: int = Field(ge=1, le=300)
    codec_left_context_frames: int = Field(ge=0)
    initial_codec_chunk_frames: int | None = Field(None, ge=1)
    codec_chunk_ramp: list[int] | None = None
    ref_code_context_frames: int | None = Field(None, ge=1)
    ref_audio_artifact_cache_max_entries: int | None = Field(None, ge=0)
    decode_batch_max_size: int | None = Field(None, ge=0)
    decode_chunk_frames: int | None = Field(None, ge=1)
    decode_left_context_frames: int | None = Field(None, ge=0)
    decode_cudagraph_batch_sizes: list[int] | None = None
    decode_cudagraph_capture_sizes: list[int] | None = None
    decode_enable_tf32: bool | None = None
    # Of Audio8 TTS alone.
    audio8_tts_codec_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    # In vLLM-Omni's own deploy files, though 0.30 reads none of the four for this model.
    codec_streaming: bool | None = None
    connector_get_sleep_s: float | None = None
    connector_get_max_wait_first_chunk: int | None = None
    connector_get_max_wait: int | None = None


class Connector(Section):
    name: Literal["SharedMemoryConnector"]
    extra: ConnectorExtra


class SamplingDefaults(Section):
    temperature: float | None = Field(None, ge=0)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    repetition_penalty: float | None = Field(None, gt=0)
    seed: int | None = None


class SubtalkerSampling(Section):
    do_sample: bool | None = None
    temperature: float | None = Field(None, gt=0)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)


class Stage(Section):
    stage_id: int
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    max_model_len: int = Field(ge=1)
    devices: str = "0"
    env: dict[str, str] | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = None
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    kv_cache_memory_bytes: int | None = Field(None, ge=1)
    enforce_eager: bool | None = None
    trust_remote_code: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    enable_flashinfer_autotune: bool | None = None
    async_scheduling: bool | None = None
    skip_mm_profiling: bool | None = None
    distributed_executor_backend: Literal["mp", "uni"] | None = None
    load_format: str | None = None
    silence_ban_frames: int | None = Field(None, ge=0)
    tts_max_instructions_length: int | None = Field(None, ge=1)
    compilation_config: dict[str, Any] | None = None
    profiler_config: dict[str, Any] | None = None
    default_sampling_params: SamplingDefaults | None = None
    subtalker_sampling_params: SubtalkerSampling | None = None
    input_connectors: dict[str, str] | None = None
    output_connectors: dict[str, str] | None = None
    engine_extras: dict[str, Any] | None = None


class StageConfig(Section):
    """A checked deploy file; get one from `load_stage_config`."""

    model_runner: Literal["v1", "v2"] = "v1"
    async_chunk: bool = True
    active_stream_window: int | None = Field(None, ge=0)
    connectors: dict[str, Connector]
    stages: list[Stage]
    platforms: dict[str, Any] | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = None
    trust_remote_code: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    distributed_executor_backend: Literal["mp", "uni"] | None = None

    _source: Path = PrivateAttr(default=Path())

    @property
    def source(self) -> Path:
        """The file this was read from."""
        return self._source

    @property
    def talker(self) -> Stage:
        return self._stage(TALKER_STAGE)

    @property
    def decoder(self) -> Stage:
        return self._stage(DECODER_STAGE)

    @property
    def chunking(self) -> ConnectorExtra:
        """How codec frames are cut into the chunks that travel from talker to decoder."""
        return self.connectors[only_reference(self.decoder.input_connectors)].extra

    @property
    def max_concurrency(self) -> int:
        """Requests both stages hold at once; one more must wait in a queue of our own."""
        return min(stage.max_num_seqs for stage in self.stages)

    @property
    def has_request_ramps(self) -> bool:
        """Whether a request's ramp starts at its own first chunk (see backend/chunk_ramp.py).

        Model runner v2 takes chunks by the batch, through a hook that only upstream's function has.
        """
        return self.async_chunk and self.chunking.codec_chunk_ramp is not None and self.model_runner == "v1"

    @property
    def max_first_chunk_frames(self) -> int:
        """The largest first chunk a request may ask for; 0 where it has no say in it."""
        if not self.async_chunk or (
            self.chunking.codec_chunk_ramp is not None and not self.has_request_ramps
        ):
            return 0
        return self.chunking.codec_chunk_frames

    @property
    def chunk_schedule_frames(self) -> tuple[int, ...]:
        """Frames of each streamed chunk, the last entry repeating; empty if nothing is streamed."""
        if not self.async_chunk:
            return ()
        chunking = self.chunking
        steady = chunking.codec_chunk_frames
        ramp = chunking.codec_chunk_ramp or [chunking.initial_codec_chunk_frames or steady, steady]
        return ramp_from_first_chunk(None, ramp, steady)

    def write_deploy_file(
        self,
        path: Path,
        *,
        memory_fractions: Mapping[int, float] | None = None,
        kv_cache_bytes: Mapping[int, int] | None = None,
        stage_env: Mapping[int, Mapping[str, str]] | None = None,
        executor: str | None = None,
        talker_sampling: Mapping[str, Any] | None = None,
        predictor_sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes what vLLM-Omni is given. What is passed here fills gaps: what the file says wins."""
        data = self.model_dump(exclude_unset=True, exclude_none=True)
        if executor:
            data.setdefault("distributed_executor_backend", executor)
        for stage in data["stages"]:
            stage_id = stage["stage_id"]
            if fraction := (memory_fractions or {}).get(stage_id):
                stage.setdefault("gpu_memory_utilization", fraction)
            if kv_bytes := (kv_cache_bytes or {}).get(stage_id):
                stage.setdefault("kv_cache_memory_bytes", kv_bytes)
            if stage_id == TALKER_STAGE:
                for key, defaults in (
                    ("default_sampling_params", talker_sampling),
                    ("subtalker_sampling_params", predictor_sampling),
                ):
                    if defaults:
                        stage[key] = {**defaults, **stage.get(key, {})}
            if env := (stage_env or {}).get(stage_id):
                stage["env"] = {**env, **stage.get("env", {})}
        path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")

    def _stage(self, stage_id: int) -> Stage:
        return next(stage for stage in self.stages if stage.stage_id == stage_id)


def only_reference(references: Mapping[str, str] | None) -> str:
    """The connector a stage names; empty if none."""
    return next(iter(references.values())) if references else ""
