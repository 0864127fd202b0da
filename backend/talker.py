"""The Qwen3-TTS talker with our code predictor in place of vLLM-Omni's.

Registered under upstream's architecture name (see `backend.plugins`), in every process. What a
request wants of the predictor reaches it as follows. `AsyncOmni.generate` takes a prompt with
`additional_information`; vLLM-Omni ships that to the stage's process and keeps it there in one dict a
request, next to what the model hands from step to step. Its runners pass those dicts to the MTP hook
of a model that sets `talker_mtp_accepts_req_infos` (first runner; `_talker_mtp_forward` in
worker/gpu_model_runner.py) and `mtp_accepts_req_infos` (second; worker_v2/model_states/
omni_model_state.py). `SamplingParams.extra_args` reaches it on the second runner only, and only a
seed: as a `torch.Generator`, from which nothing can be drawn inside a graph.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from vllm.config import VllmConfig
from vllm.multimodal.audio import AudioResampler
from vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_talker import Qwen3TTSTalkerForConditionalGeneration

from backend.clip_encoder import ClipEncoder
from backend.code_predictor import CodePredictor, Controls, PredictorShape, PredictorWeights
from backend.frame_stats import FrameStatsWriter
from backend.frame_timer import FrameTimer
from backend.predictor_request import PredictorRequest

# Where a request's dict keeps the number of its next frame.
_FRAME_KEY = "code_predictor_frame"


class Talker(Qwen3TTSTalkerForConditionalGeneration):
    """vLLM-Omni's talker; weights load by the same names."""

    encoder: ClipEncoder

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        dtype = vllm_config.model_config.dtype
        assert isinstance(dtype, torch.dtype)
        shape = PredictorShape.from_config(
            self.talker_config.code_predictor_config, int(self.talker_config.hidden_size)
        )
        # float16 has no range for the MLP's products: such a talker gets a float32 predictor.
        self.code_predictor = _LoadablePredictor(shape, torch.float32 if dtype == torch.float16 else dtype)
        self._max_batch = int(vllm_config.scheduler_config.max_num_seqs)
        self._predictor: CodePredictor | None = None
        self._stats = FrameStatsWriter.from_environment()
        self._timer: FrameTimer | None = None
        # Upstream fixes embeddings to bfloat16, which few CPUs compute natively.
        self._embedding_dtype = dtype
        self._prompt_builder._embedding_dtype = dtype
        # In the talker's precision, as in the reference package; float16 has no range for it either.
        self.encoder = ClipEncoder.of(self.encoder, torch.float32 if dtype == torch.float16 else dtype)
        # Upstream forbids code 0 in group 0; the reference package does not.
        self._codec_disallowed_mask[0] = False
        # The graphs, the seeds and the noise are ours: the runners must not wrap or draw anything.
        self.talker_mtp_accepts_req_infos = self.mtp_accepts_req_infos = True
        self.talker_mtp_graph_safe = False
        self.mtp_disable_graph = True
        self.mtp_sample_uniforms = False
        self.get_mtp_seed = None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded: set[str] = super().load_weights(weights)
        self._set_up_predictor()
        return loaded

    def _encode_ref_audio_batch(
        self, wavs: list[NDArray[np.float32]], sr: int, *, device: torch.device
    ) -> list[Tensor]:
        rate_hz = int(self._encoder_feature_extractor.sampling_rate)
        if sr != rate_hz:  # not with clips of this application
            resampler = AudioResampler(target_sr=rate_hz)
            wavs = [resampler.resample(wav.astype(np.float32), orig_sr=sr) for wav in wavs]
        return self.encoder.codes(wavs, self._encoder_valid_num_quantizers, self._encoder_downsample_rate)

    def _build_stacked_codec_embed(self) -> None:
        """Upstream's copy of all code embeddings, which only its own `talker_mtp` reads."""

    def _set_up_predictor(self) -> CodePredictor:
        weights = self.code_predictor
        self._predictor = CodePredictor(weights, self._max_batch)
        if self._stats is not None:
            self._timer = FrameTimer(self._stats, weights.device.type == "cuda")
        return self._predictor

    @torch.inference_mode()
    def talker_mtp(
        self,
        input_ids: Tensor,
        input_embeds: Tensor,
        last_talker_hidden: Tensor,
        text_step: Tensor,
        *,
        req_infos: Sequence[dict[str, Any]] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        do_sample: bool | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """One frame of each row: the talker's next inputs [batch, hidden] and codes [batch, groups].

        Sampling values given here are the stage configuration's, for requests that have none.
        """
        batch = input_ids.shape[0]
        predictor = self._predictor or self._set_up_predictor()
        defaults = PredictorRequest(
            temperature=(0.9 if temperature is None else temperature) if do_sample is not False else 0.0,
            top_k=50 if top_k is None else top_k,
            top_p=1.0 if top_p is None else top_p,
        )
        infos = req_infos or [{} for _ in range(batch)]
        requests = [PredictorRequest.read(info, defaults) for info in infos]
        rows = [request.controls(_next_frame(info)) for request, info in zip(requests, infos, strict=True)]
        given = (
            input_ids.reshape(batch).long(),
            input_embeds.reshape(batch, -1),
            last_talker_hidden.reshape(batch, -1),
            text_step.reshape(batch, -1),
        )
        if self._timer is None:
            result = predictor.predict(*given, rows)
        else:
            frames = tuple((request.run, row.frame) for request, row in zip(requests, rows, strict=True))
            with self._timer.frame(frames):
                result = predictor.predict(*given, rows)
            self._note(requests, rows, result.fallbacks)
        return result.next_embeds.to(input_embeds.dtype), result.codes

    # The second runner's name for it.
    mtp = talker_mtp

    def _note(
        self, requests: list[PredictorRequest], rows: list[Controls], fallbacks: tuple[str | None, ...]
    ) -> None:
        assert self._stats is not None
        for request, row, fallback in zip(requests, rows, fallbacks, strict=True):
            if request.run:
                self._stats.frame(request.run, row.graph and fallback is None, fallback)


class _LoadablePredictor(PredictorWeights):
    """Our weights, with what upstream's talker and prompt builder ask of its predictor."""

    def get_input_embeddings(self) -> list["_Table"]:
        return [_Table(weight) for weight in self.embeddings]


class _Table:
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


def _next_frame(info: dict[str, Any]) -> int:
    frame = int(info.get(_FRAME_KEY, 0))
    info[_FRAME_KEY] = frame + 1
    return frame
