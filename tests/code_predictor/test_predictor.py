"""Frames as the engine asks for them, against an independent reference and across batches; on the CPU."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backend.code_predictor import CodePredictor, Controls, PredictorShape, plain
from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.controls import LEAST_TEMPERATURE, write_controls
from backend.code_predictor.frame import predict_frame
from backend.code_predictor.weights import load_predictor
from tests.code_predictor.forcing import forced_logits
from tests.code_predictor.making import (
    EQUALLY_WIDE,
    SMALL,
    published_tensors,
    random_frame,
    random_weights,
    sampled,
)
from tests.code_predictor.reference import greedy_codes, logits_of

TRAINED = Path(__file__).resolve().parents[2] / "assets" / "model"
BOTH = pytest.mark.parametrize("shape", [SMALL, EQUALLY_WIDE], ids=["projected", "equally wide"])


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    torch.seed()


@BOTH
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_logits_follow_the_reference_on_the_same_codes(
    shape: PredictorShape, dtype: torch.dtype, tolerance: float
) -> None:
    tensors = published_tensors(shape, 5)
    weights = random_weights(shape, 5, dtype)
    inputs = torch.randn(2 * 3, shape.talker_hidden).to(dtype)
    codes = torch.randint(shape.codes, (3, shape.groups))
    logits, _ = forced_logits(plain, weights, inputs, codes)
    for row in range(3):
        steps = [
            tensors[f"model.codec_embedding.{g - 1}.weight"][codes[row, g]]
            for g in range(1, shape.groups - 1)
        ]
        expected = torch.stack(logits_of(tensors, shape, [inputs[row], inputs[3 + row], *steps]))
        error = (logits[row].double() - expected).norm() / expected.norm()
        assert error < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_logits_of_trained_weights_follow_the_reference(dtype: torch.dtype, tolerance: float) -> None:
    if not (TRAINED / "model.safetensors").is_file():
        pytest.skip("there is no trained checkpoint in assets/model")
    found = load_file(TRAINED / "model.safetensors")
    config = json.loads((TRAINED / "config.json").read_text())
    weights = load_predictor(found, config, dtype)
    prefix = "talker.code_predictor."
    tensors = {name.removeprefix(prefix): found[name].float() for name in found if name.startswith(prefix)}
    shape = weights.shape
    inputs = torch.randn(2, shape.talker_hidden).to(dtype)
    codes = torch.randint(shape.codes, (1, shape.groups))
    logits, _ = forced_logits(plain, weights, inputs, codes)
    steps = [
        tensors[f"model.codec_embedding.{g - 1}.weight"][codes[0, g]] for g in range(1, shape.groups - 1)
    ]
    expected = torch.stack(logits_of(tensors, shape, [inputs[0], inputs[1], *steps]))
    assert (logits[0].double() - expected).norm() / expected.norm() < tolerance


@BOTH
def test_greedy_codes_are_the_reference_s(shape: PredictorShape) -> None:
    predictor = CodePredictor(random_weights(shape, 6))
    tensors = published_tensors(shape, 6)
    code0, embed, hidden, text = random_frame(predictor._weights, 4)
    result = predictor.predict(code0, embed, hidden, text, sampled(4, temperature=0.0))
    for row in range(4):
        expected = greedy_codes(tensors, shape, hidden[row], embed[row])
        assert result.codes[row].tolist() == [int(code0[row]), *expected]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-39, 9e-6, -0.0, float("nan")])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float, top_p: float) -> None:
    weights = random_weights(SMALL, 6)
    predictor = CodePredictor(weights)
    frame = random_frame(weights, 3)
    greedy = predictor.predict(*frame, sampled(3, temperature=0.0))
    tiny = predictor.predict(*frame, sampled(3, temperature=temperature, top_p=top_p))
    assert torch.equal(tiny.codes, greedy.codes)
    buffers = FrameBuffers(weights, 3)
    write_controls(sampled(3, temperature=temperature), buffers)
    assert buffers.inverse_temperature.tolist() == [1.0] * 3


def test_the_least_temperature_that_is_not_greedy_gives_finite_numbers() -> None:
    weights = random_weights(SMALL, 6)
    buffers = FrameBuffers(weights, 1)
    write_controls(sampled(1, temperature=LEAST_TEMPERATURE), buffers)
    assert buffers.noise.tolist() == [1.0]
    # Logits stay far below a million.
    assert (1e6 * buffers.inverse_temperature).isfinite().all()


@BOTH
@pytest.mark.parametrize("top_k", [1, 7, 50, 0])
def test_the_compiled_frame_is_the_plain_one(shape: PredictorShape, top_k: int) -> None:
    weights = random_weights(shape, 7)
    frame = random_frame(weights, 5)
    rows = sampled(5, seed=100, top_k=top_k, temperature=0.8)
    rows[2] = replace(rows[2], temperature=0.0)
    result = CodePredictor(weights).predict(*frame, rows)

    buffers = FrameBuffers(weights, 5)
    buffers.poison()
    code0, embed, hidden, text = frame
    buffers.inputs.copy_(torch.cat([hidden, embed]))
    buffers.text_step.copy_(text)
    buffers.codes[:, 0] = code0
    write_controls(rows, buffers)
    with torch.inference_mode():
        predict_frame(plain, weights, buffers)
    assert torch.equal(result.codes, buffers.codes)
    torch.testing.assert_close(result.next_embeds, buffers.next_embeds, rtol=1e-5, atol=1e-5)


def test_a_request_s_codes_do_not_depend_on_its_company() -> None:
    weights = random_weights(SMALL, 8)
    predictor = CodePredictor(weights)
    frame = random_frame(weights, 7)
    rows = sampled(7, seed=3)
    together = predictor.predict(*frame, rows)
    order = torch.randperm(7)
    shuffled = predictor.predict(*(tensor[order] for tensor in frame), [rows[i] for i in order])
    assert torch.equal(shuffled.codes, together.codes[order])
    for row in range(7):
        alone = predictor.predict(*(tensor[row : row + 1] for tensor in frame), rows[row : row + 1])
        assert torch.equal(alone.codes[0], together.codes[row])
        assert torch.equal(alone.next_embeds[0], together.next_embeds[row])


def test_seed_and_frame_number_change_the_codes() -> None:
    weights = random_weights(SMALL, 8)
    predictor = CodePredictor(weights)
    frame = random_frame(weights, 1)
    codes = [
        tuple(predictor.predict(*frame, [Controls(seed=seed, frame=number)]).codes[0].tolist())
        for seed, number in ((1, 0), (1, 0), (2, 0), (1, 1), (2**40 + 1, 0))
    ]
    assert codes[0] == codes[1]
    assert len(set(codes)) == 4


def test_next_embeddings_are_all_codes_and_the_text() -> None:
    weights = random_weights(SMALL, 9)
    code0, embed, hidden, text = random_frame(weights, 3)
    result = CodePredictor(weights).predict(code0, embed, hidden, text, sampled(3))
    for row in range(3):
        total = embed[row] + text[row]
        for group in range(1, SMALL.groups):
            total = total + weights.embeddings[group - 1, result.codes[row, group]]
        torch.testing.assert_close(result.next_embeds[row], total, rtol=1e-5, atol=1e-5)


def test_a_frame_without_a_real_first_code_is_all_zeros() -> None:
    weights = random_weights(SMALL, 9)
    code0, *rest = random_frame(weights, 2)
    code0[1] = SMALL.codes + 102  # as end of speech is
    codes = CodePredictor(weights).predict(code0, *rest, sampled(2)).codes
    assert codes[0].any()
    assert not codes[1].any()


def test_results_are_the_caller_s_to_keep() -> None:
    weights = random_weights(SMALL, 9)
    predictor = CodePredictor(weights)
    first = predictor.predict(*random_frame(weights, 2), sampled(2))
    kept = first.codes.clone(), first.next_embeds.clone()
    predictor.predict(*random_frame(weights, 2), sampled(2, seed=50))
    assert torch.equal(first.codes, kept[0])
    assert torch.equal(first.next_embeds, kept[1])


def test_without_a_graph_every_frame_says_why_and_is_made_all_the_same() -> None:
    weights = random_weights(SMALL, 9)
    predictor = CodePredictor(weights)
    frame = random_frame(weights, 3)
    rows = [Controls(seed=1), Controls(seed=2, graph=False), Controls(seed=3, top_p=0.5)]
    result = predictor.predict(*frame, rows)
    assert result.fallbacks == (
        "there is no CUDA graph on the CPU",
        None,
        "there is no CUDA graph on the CPU",
    )
    plainly = predictor.predict(*frame, [replace(row, graph=False) for row in rows])
    assert torch.equal(result.codes, plainly.codes)


def test_a_low_top_p_is_greedy_among_others_that_sample() -> None:
    weights = random_weights(SMALL, 9)
    predictor = CodePredictor(weights)
    frame = random_frame(weights, 3)
    rows = [Controls(seed=1), Controls(seed=2, top_p=1e-6), Controls(seed=3)]
    greedy = predictor.predict(*frame, [replace(row, temperature=0.0) for row in rows]).codes
    mixed = predictor.predict(*frame, rows).codes
    assert torch.equal(mixed[1], greedy[1])
    assert torch.equal(
        mixed[0], predictor.predict(*frame, [replace(row, top_p=1.0) for row in rows]).codes[0]
    )


def test_a_predictor_in_bfloat16_predicts_on_the_cpu_too() -> None:
    weights = random_weights(SMALL, 9, torch.bfloat16)
    code0, embed, hidden, text = random_frame(weights, 2)
    result = CodePredictor(weights).predict(code0, embed, hidden, text, sampled(2, temperature=0.0))
    assert result.next_embeds.dtype == torch.bfloat16
    exact = CodePredictor(random_weights(SMALL, 9)).predict(
        code0, embed.float(), hidden.float(), text.float(), sampled(2, temperature=0.0)
    )
    assert torch.equal(result.codes, exact.codes)


def test_where_the_cpu_function_cannot_be_compiled_plain_pytorch_predicts_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = random_weights(SMALL, 9)
    frame = random_frame(weights, 2)
    expected = CodePredictor(weights).predict(*frame, sampled(2)).codes
    monkeypatch.setitem(sys.modules, "backend.code_predictor.cpu_kernel", None)
    predictor = CodePredictor(weights)
    assert "could not be compiled" in caplog.text
    assert torch.equal(predictor.predict(*frame, sampled(2)).codes, expected)
