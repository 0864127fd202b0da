"""The predictor's weights, each kind stacked over layers or groups, loaded by their published names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backend.code_predictor.shape import PredictorShape

# Published name -> (our parameter, which part of its rows). The number in a name picks the layer or group.
_LAYER_PARTS = {
    "input_layernorm": ("input_norm", 0),
    "self_attn.q_proj": ("qkv", 0),
    "self_attn.k_proj": ("qkv", 1),
    "self_attn.v_proj": ("qkv", 2),
    "self_attn.q_norm": ("q_norm", 0),
    "self_attn.k_norm": ("k_norm", 0),
    "self_attn.o_proj": ("attention_out", 0),
    "post_attention_layernorm": ("mlp_norm", 0),
    "mlp.gate_proj": ("gate_up", 0),
    "mlp.up_proj": ("gate_up", 1),
    "mlp.down_proj": ("mlp_out", 0),
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")
_GROUP_NAME = re.compile(r"(model\.codec_embedding|lm_head)\.(\d+)\.weight")
_SINGLE = {
    "model.norm.weight": "final_norm",
    "small_to_mtp_projection.weight": "projection",
    "small_to_mtp_projection.bias": "projection_bias",
}


@dataclass(frozen=True)
class Prepared:
    """What is computed once from loaded weights."""

    # Each residual code's embedding as the layers take it: [groups - 1, codes, hidden].
    tables: Tensor
    # Rotary angles of every position, float32: [positions, head_dim / 2].
    cos: Tensor
    sin: Tensor


class PredictorWeights(nn.Module):
    """Parameters of a code predictor; `load_weights` takes the checkpoint's names.

    Shapes: input_norm, mlp_norm [layers, hidden]; qkv [layers, qkv_rows, hidden]; q_norm, k_norm
    [layers, head_dim]; attention_out [layers, hidden, heads * head_dim]; gate_up [layers, 2 * mlp,
    hidden]; mlp_out [layers, hidden, mlp]; final_norm [hidden]; heads [groups - 1, codes, hidden];
    embeddings [groups - 1, codes, talker_hidden]; projection [hidden, talker_hidden] and its bias,
    absent where both are equally wide.
    """

    def __init__(self, shape: PredictorShape, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.shape = shape
        s = shape

        def parameter(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size, dtype=dtype), requires_grad=False)

        self.input_norm = parameter(s.layers, s.hidden)
        self.qkv = parameter(s.layers, s.qkv_rows, s.hidden)
        self.q_norm = parameter(s.layers, s.head_dim)
        self.k_norm = parameter(s.layers, s.head_dim)
        self.attention_out = parameter(s.layers, s.hidden, s.heads * s.head_dim)
        self.mlp_norm = parameter(s.layers, s.hidden)
        self.gate_up = parameter(s.layers, 2 * s.mlp, s.hidden)
        self.mlp_out = parameter(s.layers, s.hidden, s.mlp)
        self.final_norm = parameter(s.hidden)
        self.heads = parameter(s.groups - 1, s.codes, s.hidden)
        self.embeddings = parameter(s.groups - 1, s.codes, s.talker_hidden)
        self.projection = parameter(s.hidden, s.talker_hidden) if s.projects else None
        self.projection_bias = parameter(s.hidden) if s.projects else None
        self._prepared: Prepared | None = None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Copies tensors in by their names below `talker.code_predictor.`; returns our parameters' names.

        Raises ValueError for a name or a shape that does not belong, or if any is missing.
        """
        expected = set(self._published_names())
        for name, tensor in weights:
            if name.endswith("rotary_emb.inv_freq"):
                continue
            if name not in expected:
                raise ValueError(f"The code predictor has no weight {name}, or it came twice.")
            expected.remove(name)
            target = self._target(name)
            if target.shape != tensor.shape:
                raise ValueError(f"{name} is {tuple(tensor.shape)}, not {tuple(target.shape)}.")
            target.copy_(tensor)
        if expected:
            raise ValueError(f"The checkpoint lacks code predictor weights: {sorted(expected)[:3]} ...")
        self._prepared = None
        return {name for name, _ in self.named_parameters()}

    @property
    def prepared(self) -> Prepared:
        """Computed on first use, which must be after loading and outside any graph capture."""
        if self._prepared is None:
            with torch.inference_mode():
                self._prepared = self._prepare()
        return self._prepared

    @property
    def dtype(self) -> torch.dtype:
        return self.qkv.dtype

    @property
    def device(self) -> torch.device:
        return self.qkv.device

    def _prepare(self) -> Prepared:
        s = self.shape
        tables: Tensor = self.embeddings
        if self.projection is not None:
            tables = nn.functional.linear(self.embeddings, self.projection, self.projection_bias)
        exponents = torch.arange(0, s.head_dim, 2, dtype=torch.float64, device="cpu") / s.head_dim
        angles = torch.outer(
            torch.arange(s.positions, dtype=torch.float64, device="cpu"), s.rope_theta**-exponents
        )
        cos, sin = (table.float().to(self.device) for table in (angles.cos(), angles.sin()))
        return Prepared(tables, cos, sin)

    def _published_names(self) -> Iterable[str]:
        for layer in range(self.shape.layers):
            yield from (f"model.layers.{layer}.{part}.weight" for part in _LAYER_PARTS)
        for group in range(self.shape.groups - 1):
            yield from (f"model.codec_embedding.{group}.weight", f"lm_head.{group}.weight")
        yield from (name for name, ours in _SINGLE.items() if getattr(self, ours) is not None)

    def _target(self, name: str) -> Tensor:
        """The view of our parameters that the published tensor `name` fills."""
        if name in _SINGLE:
            return getattr(self, _SINGLE[name]).data
        if grouped := _GROUP_NAME.fullmatch(name):
            stack = self.embeddings if grouped[1] == "model.codec_embedding" else self.heads
            return stack.data[int(grouped[2])]
        match = _LAYER_NAME.fullmatch(name)
        assert match is not None
        ours, part = _LAYER_PARTS[match[2]]
        stack = getattr(self, ours).data[int(match[1])]
        s = self.shape
        heads, kv_heads = s.heads * s.head_dim, s.kv_heads * s.head_dim
        if ours == "qkv":
            return stack.split([heads, kv_heads, kv_heads])[part]
        if ours == "gate_up":
            return stack.split(s.mlp)[part]
        return stack


def load_predictor(
    tensors: Mapping[str, Tensor], config: dict[str, object], dtype: torch.dtype
) -> PredictorWeights:
    """The predictor among a checkpoint's `tensors` (published names), given its config.json."""
    talker = config["talker_config"]
    assert isinstance(talker, dict)
    shape = PredictorShape.from_config(talker["code_predictor_config"], int(talker["hidden_size"]))
    weights = PredictorWeights(shape, dtype)
    prefix = "talker.code_predictor."
    weights.load_weights(
        (name.removeprefix(prefix), tensor) for name, tensor in tensors.items() if name.startswith(prefix)
    )
    return weights
