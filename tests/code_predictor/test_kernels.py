"""Each Triton stage against its plain twin: on a GPU, or interpreted (TRITON_INTERPRET=1) on the CPU."""

import os
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from backend.code_predictor import PredictorShape, plain
from backend.code_predictor.buffers import FrameBuffers
from tests.code_predictor.forcing import forced_logits
from tests.code_predictor.making import EQUALLY_WIDE, SMALL, random_weights

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED,
    reason="Triton needs a GPU; test_interpreted_kernels runs these interpreted",
)
# The interpreter takes milliseconds for each program of each launch.
WHOLE = replace(SMALL, layers=1, groups=3, codes=64, hidden=32, mlp=32) if INTERPRETED else SMALL
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
# Half a unit in the last place of what is rounded, and sums in another order.
TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (3e-2, 3e-2)}


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    torch.seed()


@pytest.fixture
def kernels() -> ModuleType:
    from backend.code_predictor import kernels

    return kernels


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert not actual.isnan().any()
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(actual.float(), expected.float(), rtol=rtol, atol=atol)


def filled(
    shape: PredictorShape, dtype: torch.dtype, batch: int
) -> tuple[FrameBuffers, FrameBuffers, object]:
    """Two equal sets of buffers, filled at random, and weights."""
    weights = random_weights(shape, 1, dtype, DEVICE)
    ours = FrameBuffers(weights, batch)
    for value in vars(ours).values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.copy_(torch.randn_like(value))
    twin = FrameBuffers(weights, batch)
    for name, value in vars(ours).items():
        if isinstance(value, torch.Tensor):
            getattr(twin, name).copy_(value)
    return ours, twin, weights


@DTYPES
@pytest.mark.parametrize("rows", [1, 17])
def test_norm_linear(kernels: ModuleType, dtype: torch.dtype, rows: int) -> None:
    x = 3 * torch.randn(rows, 48, device=DEVICE)
    norm = (1 + 0.3 * torch.randn(48, device=DEVICE)).to(dtype)
    weight = torch.randn(40, 48, device=DEVICE).to(dtype) / 7
    outs = [torch.full((rows, 40), float("nan"), device=DEVICE) for _ in range(2)]
    for stages, out in zip((kernels, plain), outs, strict=True):
        stages.norm_linear(x, norm, weight, out, 1e-6)
    close(outs[0], outs[1], dtype)


@DTYPES
def test_linear_add(kernels: ModuleType, dtype: torch.dtype) -> None:
    x = torch.randn(3, 64, device=DEVICE).to(dtype)
    weight = torch.randn(48, 64, device=DEVICE).to(dtype) / 8
    stream = torch.randn(3, 48, device=DEVICE)
    twin = stream.clone()
    kernels.linear_add(x, weight, stream)
    plain.linear_add(x, weight, twin)
    close(stream, twin, dtype)


@DTYPES
def test_gated_mlp(kernels: ModuleType, dtype: torch.dtype) -> None:
    x = torch.randn(3, 48, device=DEVICE)
    norm = torch.rand(48, device=DEVICE).to(dtype) + 0.5
    weight = torch.randn(2 * 80, 48, device=DEVICE).to(dtype) / 7
    outs = [torch.full((3, 80), float("nan"), device=DEVICE, dtype=dtype) for _ in range(2)]
    for stages, out in zip((kernels, plain), outs, strict=True):
        stages.gated_mlp(x, norm, weight, out, 1e-6)
    close(outs[0], outs[1], dtype)


@DTYPES
@pytest.mark.parametrize(("start", "count"), [(0, 2), (2, 1), (5, 1)])
def test_attend(kernels: ModuleType, dtype: torch.dtype, start: int, count: int) -> None:
    ours, twin, weights = filled(SMALL, dtype, 3)
    for buffers in (ours, twin):
        # What lies ahead must never be read.
        buffers.keys[:, :, :, start:] = float("nan")
        buffers.values[:, :, :, start:] = float("nan")
        buffers.attended.fill_(float("nan"))
    kernels.attend(ours, weights, 1, start, count)
    plain.attend(twin, weights, 1, start, count)
    rows, end = count * 3, start + count
    close(ours.attended[:rows], twin.attended[:rows], dtype)
    close(ours.keys[1, :, :, :end], twin.keys[1, :, :, :end], dtype)
    assert torch.equal(ours.values[1, :, :, :end], twin.values[1, :, :, :end])


@DTYPES
@pytest.mark.parametrize("shape", [SMALL, EQUALLY_WIDE], ids=["projected", "equally wide"])
def test_project_and_finish(kernels: ModuleType, dtype: torch.dtype, shape: PredictorShape) -> None:
    ours, twin, weights = filled(shape, dtype, 2)
    ours.codes.copy_(torch.randint(shape.codes, ours.codes.shape))
    ours.codes[1, 0] = shape.codes + 102
    twin.codes.copy_(ours.codes)
    for stages, buffers in ((kernels, ours), (plain, twin)):
        buffers.stream.fill_(float("nan"))
        buffers.next_embeds.fill_(float("nan"))
        stages.project(buffers.inputs, weights, buffers.stream)
        stages.finish(buffers, weights)
    close(ours.stream, twin.stream, dtype)
    assert torch.equal(ours.codes, twin.codes)
    assert not ours.codes[1].any()
    close(ours.next_embeds, twin.next_embeds, dtype)


@pytest.mark.parametrize("spread", [0.1, 4.0])
def test_draw(kernels: ModuleType, spread: float) -> None:
    """Also where the top k are a small part of what is likely, so that many tries are needed."""
    ours, twin, weights = filled(SMALL, torch.float32, 12)
    for buffers in (ours, twin):
        buffers.logits.copy_(spread * ours.logits if buffers is ours else ours.logits)
        buffers.seed.copy_(torch.arange(12) * 2**35 + 1)
        buffers.frame.copy_(torch.arange(12))
        buffers.top_k.copy_(torch.tensor([1, 2, 5, 50, 256, 3, 4, 5, 6, 7, 8, 50]))
        buffers.noise.fill_(1)
        buffers.noise[-1] = 0
        buffers.inverse_temperature.fill_(1.3)
        buffers.codes.fill_(-1)
        buffers.stream.fill_(float("nan"))
    kernels.draw(ours, weights, 3)
    plain.draw(twin, weights, 3)
    assert torch.equal(ours.codes, twin.codes)
    assert torch.equal(ours.stream[:12], twin.stream[:12])
    assert ours.codes[11, 3] == ours.logits[11].argmax()


@DTYPES
def test_logits_of_a_whole_frame_on_the_same_codes(kernels: ModuleType, dtype: torch.dtype) -> None:
    weights = random_weights(WHOLE, 4, dtype, DEVICE)
    inputs = torch.randn(2 * 3, WHOLE.talker_hidden, device=DEVICE).to(dtype)
    codes = torch.randint(WHOLE.codes, (3, WHOLE.groups), device=DEVICE)
    ours, buffers = forced_logits(kernels, weights, inputs, codes)
    twin, _ = forced_logits(plain, weights, inputs, codes)
    assert (ours - twin).norm() / twin.norm() < (1e-4 if dtype is torch.float32 else 2e-2)
    assert not buffers.next_embeds.isnan().any()


def test_a_row_is_rounded_the_same_in_any_batch(kernels: ModuleType) -> None:
    weights = random_weights(WHOLE, 4, torch.bfloat16, DEVICE)
    inputs = torch.randn(2, 20, WHOLE.talker_hidden, device=DEVICE).to(torch.bfloat16)
    codes = torch.randint(WHOLE.codes, (20, WHOLE.groups), device=DEVICE)
    together, _ = forced_logits(kernels, weights, inputs.flatten(0, 1), codes)
    alone, _ = forced_logits(kernels, weights, inputs[:, 18:19].flatten(0, 1), codes[18:19])
    assert torch.equal(alone[0], together[18])
