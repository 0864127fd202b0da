"""Greedy codes against those of the reference package, qwen-tts, on the bundled checkpoint in float32.

reference_package.json was made with `talker.code_predictor.generate(..., do_sample=False)` of qwen-tts
0.1.1 on the CPU: for each frame a hidden state and a first code were drawn from a generator with its seed.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backend.checkpoint import Variant
from backend.code_predictor import CodePredictor
from backend.code_predictor.weights import load_predictor
from tests.code_predictor.making import sampled

RECORDED = json.loads((Path(__file__).parent / "reference_package.json").read_text())
PREFIX = "talker.code_predictor."


def test_greedy_codes_are_the_reference_package_s(tiny_checkpoint: Callable[[Variant], Path]) -> None:
    folder = tiny_checkpoint("base")
    tensors = load_file(folder / "model.safetensors")
    made = hashlib.sha256()
    for name in sorted(name for name in tensors if name.startswith(PREFIX)):
        made.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    if made.hexdigest() != RECORDED["weights_sha256"]:
        pytest.skip("this version of torch draws other random weights than the recorded codes were made with")
    config = json.loads((folder / "config.json").read_text())
    predictor = CodePredictor(load_predictor(tensors, config, torch.float32))
    expected = torch.tensor(RECORDED["codes"])
    table = tensors["talker.model.codec_embedding.weight"].float()
    width = table.shape[1]
    generator = torch.Generator().manual_seed(RECORDED["seed"])
    hidden, code0 = [], []
    for _ in range(len(expected)):
        hidden.append(torch.randn(1, 1, width, generator=generator).flatten())
        code0.append(int(torch.randint(1, 2048, (1,), generator=generator)))
    assert code0 == expected[:, 0].tolist()
    codes = predictor.predict(
        expected[:, 0],
        table[expected[:, 0]],
        torch.stack(hidden),
        torch.zeros(len(expected), width),
        sampled(len(expected), temperature=0.0),
    ).codes
    assert torch.equal(codes, expected)
