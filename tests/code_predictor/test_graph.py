"""The frame as a CUDA graph: the same bits as launched one by one, in any batch. Needs an NVIDIA GPU."""

from dataclasses import replace

import pytest
import torch

from backend.code_predictor import CodePredictor, Controls, PredictorShape
from tests.code_predictor.forcing import forced_logits
from tests.code_predictor.making import SMALL, published_tensors, random_frame, random_weights, sampled
from tests.code_predictor.reference import logits_of

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]
# As published, for 0.6B (equally wide) and 1.7B.
PUBLISHED = PredictorShape(1024, 3072, 5, 16, 8, 128, 16, 2048, 1024, 1e-6, 1e6)
SHAPES = pytest.mark.parametrize("shape", [SMALL, PUBLISHED, replace(PUBLISHED, talker_hidden=2048)])
MAX_BATCH = 16


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    torch.seed()


def made(shape: PredictorShape, dtype: torch.dtype = torch.bfloat16) -> CodePredictor:
    predictor = CodePredictor(random_weights(shape, 3, dtype, "cuda"), MAX_BATCH)
    assert predictor.graph_unavailable is None
    return predictor


def poison(predictor: CodePredictor) -> None:
    assert predictor._graph is not None
    with torch.inference_mode():
        for buffers in (*predictor._graph.buffers.values(), *predictor._buffers.values()):
            buffers.poison()


@SHAPES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_graph_and_eager_give_the_same_bits(shape: PredictorShape, dtype: torch.dtype) -> None:
    predictor = made(shape, dtype)
    for batch in (1, 2, 3, 8, 13, 16):
        for _ in range(3):
            frame = random_frame(predictor._weights, batch)
            rows = sampled(batch, seed=int(torch.randint(2**31, ())))
            rows[0] = replace(rows[0], temperature=0.0)
            poison(predictor)
            by_graph = predictor.predict(*frame, rows)
            poison(predictor)
            eager = predictor.predict(*frame, [replace(row, graph=False) for row in rows])
            assert by_graph.fallbacks == (None,) * batch
            assert torch.equal(by_graph.codes, eager.codes)
            assert torch.equal(by_graph.next_embeds, eager.next_embeds)
            assert not by_graph.next_embeds.isnan().any()
            assert ((by_graph.codes >= 0) & (by_graph.codes < shape.codes)).all()


@SHAPES
def test_a_request_s_codes_do_not_depend_on_its_company(shape: PredictorShape) -> None:
    predictor = made(shape)
    frame = random_frame(predictor._weights, 16)
    rows = sampled(16, seed=9)
    together = predictor.predict(*frame, rows)
    for size in (1, 2, 5):
        for start in (0, 7, 16 - size):
            part = slice(start, start + size)
            few = predictor.predict(*(tensor[part] for tensor in frame), rows[part])
            assert torch.equal(few.codes, together.codes[part])
            assert torch.equal(few.next_embeds, together.next_embeds[part])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_logits_follow_the_reference_at_the_published_size(dtype: torch.dtype, tolerance: float) -> None:
    from backend.code_predictor import kernels

    shape = replace(PUBLISHED, talker_hidden=2048)
    weights = random_weights(shape, 5, dtype, "cuda")
    inputs = torch.randn(2 * 2, shape.talker_hidden, device="cuda").to(dtype)
    codes = torch.randint(shape.codes, (2, shape.groups), device="cuda")
    logits, _ = forced_logits(kernels, weights, inputs, codes)
    tensors = published_tensors(shape, 5)
    for row in range(2):
        steps = [
            tensors[f"model.codec_embedding.{g - 1}.weight"][codes[row, g].item()]
            for g in range(1, shape.groups - 1)
        ]
        given = [inputs[row].float().cpu(), inputs[2 + row].float().cpu(), *steps]
        expected = torch.stack(logits_of(tensors, shape, given))
        error = (logits[row].double().cpu() - expected).norm() / expected.norm()
        assert error < tolerance


def test_ways_can_be_mixed_in_one_batch() -> None:
    predictor = made(SMALL)
    frame = random_frame(predictor._weights, 4)
    rows = sampled(4)
    expected = predictor.predict(*frame, rows).codes
    mixed = [rows[0], replace(rows[1], graph=False), rows[2], replace(rows[3], top_p=0.9)]
    result = predictor.predict(*frame, mixed)
    assert result.fallbacks == (None, None, None, "top_p is below 1")
    assert torch.equal(result.codes[:3], expected[:3])


def test_a_batch_over_the_largest_graph_runs_eager_and_says_so() -> None:
    predictor = made(SMALL)
    batch = predictor._graph.largest + 1  # type: ignore[union-attr]
    frame = random_frame(predictor._weights, batch)
    rows = sampled(batch)
    result = predictor.predict(*frame, rows)
    assert set(result.fallbacks) == {f"a batch of {batch} is over the largest graph, {batch - 1}"}
    alone = predictor.predict(*(tensor[:1] for tensor in frame), rows[:1])
    assert torch.equal(alone.codes[0], result.codes[0])


def test_batches_over_the_largest_graph_share_buffers() -> None:
    predictor = made(SMALL)
    for batch in range(MAX_BATCH + 1, 2 * MAX_BATCH + 1):
        predictor.predict(*random_frame(predictor._weights, batch), sampled(batch))
    assert list(predictor._buffers) == [2 * MAX_BATCH]


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        (SMALL, torch.float16, "no kernels for torch.float16"),
        (replace(SMALL, head_dim=24), torch.bfloat16, "recording failed (ValueError)"),
    ],
)
def test_what_no_kernel_supports_runs_in_plain_pytorch(
    shape: PredictorShape, dtype: torch.dtype, reason: str
) -> None:
    weights = random_weights(shape, 3, dtype, "cuda")
    predictor = CodePredictor(weights, MAX_BATCH)
    result = predictor.predict(*random_frame(weights, 2), [Controls(seed=1), Controls(seed=2)])
    assert result.fallbacks == (reason, reason)
    assert ((result.codes >= 0) & (result.codes < shape.codes)).all()


def test_replays_are_not_disturbed_by_work_between_them() -> None:
    """Replays share one memory pool; what the rest of a process allocates must not land in it."""
    predictor = made(SMALL)
    frame = random_frame(predictor._weights, 3)
    expected = predictor.predict(*frame, sampled(3)).codes
    for size in (1, 3, 8, 16):
        predictor.predict(*random_frame(predictor._weights, size), sampled(size, seed=70))
        _ = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
        assert torch.equal(predictor.predict(*frame, sampled(3)).codes, expected)
