"""Published names load into place, and nothing else does."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backend.checkpoint import Variant
from backend.code_predictor.weights import PredictorWeights, load_predictor
from tests.code_predictor.making import EQUALLY_WIDE, SMALL, published_tensors


def test_a_checkpoint_of_ours_loads_by_its_published_names(
    tiny_checkpoint: Callable[[Variant], Path],
) -> None:
    folder = tiny_checkpoint("base")
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    weights = load_predictor(tensors, config, torch.float32)
    assert weights.shape.layers == config["talker_config"]["code_predictor_config"]["num_hidden_layers"]
    name = "talker.code_predictor.model.layers.1.self_attn"
    stacked = torch.cat([tensors[f"{name}.{part}_proj.weight"] for part in "qkv"]).float()
    assert torch.equal(weights.qkv[1], stacked)
    assert torch.equal(weights.heads[14], tensors["talker.code_predictor.lm_head.14.weight"].float())


@pytest.mark.parametrize("shape", [SMALL, EQUALLY_WIDE])
def test_every_parameter_is_filled_and_reported(shape: object) -> None:
    weights = PredictorWeights(shape)  # type: ignore[arg-type]
    for parameter in weights.parameters():
        parameter.data.fill_(float("nan"))
    loaded = weights.load_weights(published_tensors(weights.shape, 1).items())
    assert loaded == {name for name, _ in weights.named_parameters()}
    assert not any(parameter.isnan().any() for parameter in weights.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("lm_head.2.weight"), "lacks"),
        (lambda t: t.update({"lm_head.99.weight": t["lm_head.0.weight"]}), "no weight lm_head.99"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(7)}), "model.norm.weight is"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(change: Callable[..., object], message: str) -> None:
    tensors = published_tensors(SMALL, 0)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        PredictorWeights(SMALL).load_weights(tensors.items())
