"""How wide and deep a code predictor is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PredictorShape:
    """Widths of one code predictor. A frame has `groups` codes, each below `codes`."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    groups: int
    codes: int
    talker_hidden: int
    norm_eps: float
    rope_theta: float

    @classmethod
    def from_config(cls, predictor: Any, talker_hidden: int) -> "PredictorShape":
        """From `talker_config.code_predictor_config` of a checkpoint, as an object or a dict."""
        values = predictor if isinstance(predictor, dict) else vars(predictor)
        rope = values.get("rope_parameters") or {}
        return cls(
            hidden=int(values["hidden_size"]),
            mlp=int(values["intermediate_size"]),
            layers=int(values["num_hidden_layers"]),
            heads=int(values["num_attention_heads"]),
            kv_heads=int(values["num_key_value_heads"]),
            head_dim=int(values["head_dim"]),
            groups=int(values["num_code_groups"]),
            codes=int(values["vocab_size"]),
            talker_hidden=talker_hidden,
            norm_eps=float(values["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or values.get("rope_theta") or 10000.0),
        )

    @property
    def positions(self) -> int:
        """The talker's hidden state, then every code of the frame."""
        return self.groups + 1

    @property
    def qkv_rows(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def projects(self) -> bool:
        """Whether the talker is of another width, so that what comes from it is projected first."""
        return self.hidden != self.talker_hidden
