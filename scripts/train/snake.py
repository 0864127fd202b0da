"""SnakeBeta (arXiv 2206.04658): y = x + sin^2(x e^alpha) / (e^beta + 1e-9), fused in Triton where it runs.

x (B, C, T) in bf16 or fp32; alpha and beta (C,) in fp32. In eager PyTorch the activation costs a dozen
passes over the largest tensors of the decoder; the kernels need one forward and one backward.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU-only machine
    triton = None

log = logging.getLogger(__name__)
_FORWARD_BLOCK, _BACKWARD_BLOCK, _BACKWARD_CHUNK = 1024, 1024, 4096


def plain_snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    y = x.float()
    return (y + torch.sin(y * alpha.exp()[:, None]).square() / (beta.exp()[:, None] + 1e-9)).to(x.dtype)


if triton is not None:

    @triton.jit
    def _forward(x, y, alpha, beta, C, T, BLOCK: tl.constexpr):
        row, t = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        a = tl.exp(tl.load(alpha + row % C))
        inverse = 1.0 / (tl.exp(tl.load(beta + row % C)) + 1e-9)
        at = row.to(tl.int64) * T + t
        v = tl.load(x + at, mask=t < T, other=0.0).to(tl.float32)
        s = tl.sin(v * a)
        tl.store(y + at, (v + s * s * inverse).to(y.dtype.element_ty), mask=t < T)

    @triton.jit
    def _backward(x, g, dx, alpha, beta, da, db, C, T, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
        row, chunk = tl.program_id(0), tl.program_id(1)
        a, eb = tl.exp(tl.load(alpha + row % C)), tl.exp(tl.load(beta + row % C))
        inverse = 1.0 / (eb + 1e-9)
        sum_a, sum_b = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for lo in range(0, CHUNK, BLOCK):
            t = chunk * CHUNK + lo + tl.arange(0, BLOCK)
            at = row.to(tl.int64) * T + t
            v = tl.load(x + at, mask=t < T, other=0.0).to(tl.float32)
            d = tl.load(g + at, mask=t < T, other=0.0).to(tl.float32)
            s, c = tl.sin(v * a), tl.cos(v * a)
            slope = 2.0 * s * c * a * inverse
            tl.store(dx + at, (d + d * slope).to(dx.dtype.element_ty), mask=t < T)
            sum_a += d * slope * v
            sum_b -= d * s * s * inverse * inverse * eb
        tl.store(da + row * tl.num_programs(1) + chunk, tl.sum(sum_a))
        tl.store(db + row * tl.num_programs(1) + chunk, tl.sum(sum_b))


class FusedSnake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        x = x.contiguous()
        b, c, t = x.shape
        y = torch.empty_like(x)
        _forward[(b * c, triton.cdiv(t, _FORWARD_BLOCK))](x, y, alpha, beta, c, t, BLOCK=_FORWARD_BLOCK)
        ctx.save_for_backward(x, alpha, beta)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, alpha, beta = ctx.saved_tensors
        b, c, t = x.shape
        chunks = triton.cdiv(t, _BACKWARD_CHUNK)
        g, dx = g.contiguous(), torch.empty_like(x)
        da, db = torch.empty(2, b * c * chunks, device=x.device, dtype=torch.float32)
        _backward[(b * c, chunks)](
            x, g, dx, alpha, beta, da, db, c, t, BLOCK=_BACKWARD_BLOCK, CHUNK=_BACKWARD_CHUNK
        )
        return dx, da.view(b, c, chunks).sum((0, 2)), db.view(b, c, chunks).sum((0, 2))


class Snake(nn.Module):
    fused = False  # set by `fuse_if_exact`

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return (FusedSnake.apply if Snake.fused else plain_snake)(x, self.alpha, self.beta)


def fused_deviation(device: str) -> float:
    """Largest deviation of the kernels from `plain_snake`: values absolute, gradients relative."""
    worst = 0.0
    for shape in ((2, 8, 5000), (3, 16, 777)):
        x = torch.randn(shape, device=device, requires_grad=True)
        alpha, beta = ((0.3 * torch.randn(shape[1], device=device)).requires_grad_() for _ in range(2))
        g = torch.randn(shape, device=device)
        outputs = [f(x, alpha, beta) for f in (plain_snake, FusedSnake.apply)]
        want, got = (torch.autograd.grad(y, (x, alpha, beta), g) for y in outputs)
        worst = max(
            [worst, (outputs[0] - outputs[1]).abs().max().item()]
            + [((p - q).norm() / p.norm()).item() for p, q in zip(want, got, strict=True)]
        )
    return worst


def fuse_if_exact(device: str) -> str:
    """Switch the fused kernels on if they run here and agree with plain PyTorch; says what was found."""
    Snake.fused = False
    if triton is None or device != "cuda":
        return "plain"
    try:
        deviation = fused_deviation(device)
    except Exception as error:  # any compiler trouble: training slower beats not training
        return f"plain, the kernels fail: {error}"
    Snake.fused = deviation < 1e-3
    return f"{'fused' if Snake.fused else 'plain'}, deviation {deviation:.1e}"
