"""The reference package's model with an ear at every boundary between its parts."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from qwen_tts import Qwen3TTSModel

Array = NDArray[Any]
# More than any logit, so that the end of speech wins wherever it is allowed.
EAGERNESS = 1e4


class ObservedModel:
    """Qwen3TTSModel in float32 on the CPU; `seen` keeps what passed since the last `reset`."""

    def __init__(self, checkpoint: str) -> None:
        self.model = Qwen3TTSModel.from_pretrained(checkpoint, dtype=torch.float32)
        self.seen: dict[str, list[Any]] = {}
        self.eager_to_end = False
        inner = self.model.model
        talker = inner.talker
        end = int(inner.config.talker_config.codec_eos_token_id)

        def talker_logits(module: Any, given: Any, logits: torch.Tensor) -> torch.Tensor | None:
            self._keep("talker_logits", logits[:, -1].numpy().copy())
            if not self.eager_to_end:
                return None
            logits = logits.clone()
            logits[..., end] += EAGERNESS
            return logits

        talker.codec_head.register_forward_hook(talker_logits)
        for head in talker.code_predictor.lm_head:
            head.register_forward_hook(
                lambda module, given, logits: self._keep("predictor_logits", logits[:, -1].numpy().copy())
            )
        if inner.speaker_encoder is not None:
            inner.speaker_encoder.register_forward_hook(
                lambda module, given, vector: self._keep("x_vector", vector.numpy().copy())
            )
        self._observe(inner, "generate", lambda given, made: self._keep("prompt_ids", given))
        self._observe(talker, "generate", self._talker_ran)
        codec = inner.speech_tokenizer
        self._observe(
            codec, "encode", lambda given, made: self._keep("clip_codes", made.audio_codes[0].numpy())
        )
        self._observe(codec, "decode", lambda given, made: self._keep("decoded", made))

    def reset(self, *, eager_to_end: bool = False) -> None:
        self.seen.clear()
        self.eager_to_end = eager_to_end

    def _keep(self, name: str, value: Any) -> None:
        self.seen.setdefault(name, []).append(value)

    def _talker_ran(self, given: dict[str, Any], made: Any) -> None:
        self._keep("prompt_embeddings", given["inputs_embeds"][0].numpy())
        self._keep("trailing_text", given["trailing_text_hidden"][0].numpy())
        self._keep("generation", {k: v for k, v in given.items() if not isinstance(v, torch.Tensor)})
        self._keep("talker_tokens", made.sequences[0].numpy())
        frames = [state[-1] for state in made.hidden_states if state[-1] is not None]
        self._keep("frames", torch.cat(frames).numpy() if frames else np.zeros((0, 16), np.int64))

    @staticmethod
    def _observe(owner: Any, name: str, keep: Any) -> None:
        """Calls `keep` with the keyword arguments and the result of every call of `owner.name`."""
        call = getattr(owner, name)

        def observed(*args: Any, **given: Any) -> Any:
            made = call(*args, **given)
            keep(given, made)
            return made

        setattr(owner, name, observed)
