"""Our talker in a running stage, keeping what passes through it, and made to follow given codes if told to.

One request at a time; `orders` says how it is told.
"""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig

from backend.plugins import register_models
from backend.talker import Talker
from tests.engine.parity.orders import EAGER, FORCED, OBSERVED, VARIABLE

# Above any logit of a model. As in scripts/reference/observed.py.
_EAGERNESS = 1e4
_END_OF_SPEECH = 2150


def register() -> None:
    """Entry point: in every process, after our own talker, whose place it takes where the variable is set."""
    if VARIABLE in os.environ:
        from vllm_omni.model_executor.models import OmniModelRegistry

        register_models()
        name = "Qwen3TTSTalkerForConditionalGeneration"
        OmniModelRegistry.register_model(name, "tests.engine.parity.observed_talker:ObservedTalker")


class ObservedTalker(Talker):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._folder = Path(os.environ[VARIABLE])
        self._forced: Tensor | None = None
        self._step = 0

    def forward(
        self, input_ids: Tensor, positions: Tensor, intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None, **given: Any,
    ) -> Any:  # fmt: skip
        if inputs_embeds is not None and int(positions.reshape(-1)[0]) == 0:
            forced = self._folder / FORCED
            self._forced = torch.from_numpy(np.load(forced)) if forced.is_file() else None
            self._step = 0
            self._keep("prompt_embeddings", inputs_embeds)
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds, **given)

    def compute_logits(self, hidden_states: Any, sampling_metadata: Any = None) -> Tensor | None:
        logits = super().compute_logits(hidden_states, sampling_metadata)
        if logits is None:
            return None
        self._keep("logits", logits)
        logits = logits.clone()
        if (self._folder / EAGER).exists():
            logits[:, _END_OF_SPEECH] += _EAGERNESS
        if self._forced is not None:
            ended = self._step >= len(self._forced)
            logits[:, _END_OF_SPEECH if ended else int(self._forced[self._step, 0])] = _EAGERNESS
        self._step += 1
        return logits

    def talker_mtp(
        self, input_ids: Tensor, input_embeds: Tensor, last_talker_hidden: Tensor, text_step: Tensor,
        **given: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        embeds, codes = super().talker_mtp(input_ids, input_embeds, last_talker_hidden, text_step, **given)
        self._keep("codes", codes)
        frame = self._step - 1
        if self._forced is None or frame >= len(self._forced):
            return embeds, codes
        row = self._forced[frame].to(codes)
        tables = self.code_predictor.get_input_embeddings()
        summed = input_embeds.reshape(1, -1) + text_step.reshape(1, -1)
        summed = summed + sum(table(row[group : group + 1]) for group, table in enumerate(tables, start=1))
        return summed.to(embeds.dtype), row[None]

    mtp = talker_mtp

    def _keep(self, name: str, value: Tensor) -> None:
        with (self._folder / OBSERVED).open("ab") as file:
            pickle.dump((name, value.detach().float().cpu().numpy()), file)
