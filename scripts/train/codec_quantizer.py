"""Residual vector quantization with code books that follow running averages (arXiv 2107.03312)."""

import torch
from torch import Tensor, nn

DECAY = 0.99
DEAD_BELOW, REBORN_AT = 0.14, 0.9  # of an even share of a step's frames
NEVER = 1e12  # squared distance of a reserved code


class ResidualVQ(nn.Module):
    """`levels` code books of `codes` vectors, each coding what the ones before left over.

    All levels live in one tensor, so that updating them costs a handful of kernels, not hundreds.
    The first `reserved` codes are never chosen.
    """

    def __init__(self, hidden: int, dim: int, levels: int, codes: int, reserved: int = 0) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(hidden, dim, 1, bias=False)
        self.register_buffer("usage", torch.ones(levels, codes))
        self.register_buffer("sums", torch.randn(levels, codes, dim))
        penalty = torch.zeros(codes)
        penalty[:reserved] = NEVER
        self.register_buffer("penalty", penalty, persistent=False)
        self.register_buffer("offset", torch.arange(levels)[:, None] * codes, persistent=False)

    def tables(self) -> Tensor:
        """(levels, codes, dim)"""
        return self.sums / self.usage.clamp(min=1e-5)[..., None]

    def lookup(self, codes: Tensor) -> Tensor:
        """codes (B, n <= levels, T) -> sum of their vectors (B, dim, T)."""
        tables = self.tables()
        total = tables.new_zeros(codes.shape[0], codes.shape[2], tables.shape[2])
        for level in range(codes.shape[1]):
            total = total + tables[level][codes[:, level]]
        return total.transpose(1, 2)

    @torch.no_grad()
    def search(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, dim) -> nearest codes (levels, N) and their vectors (levels, N, dim)."""
        tables = self.tables()
        bias = tables.square().sum(-1) + self.penalty
        picks, vectors, left = [], [], x
        for table, b in zip(tables, bias, strict=True):
            pick = torch.addmm(b[None], left, table.t(), alpha=-2).argmin(1)
            vector = table[pick]
            left = left - vector
            picks.append(pick)
            vectors.append(vector)
        return torch.stack(picks), torch.stack(vectors)

    def forward(
        self, z: Tensor, keep: Tensor | None = None, revive: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """z (B, dim, T) -> quantized with straight-through gradient, codes (B, levels, T), commitment loss.

        keep (B,): levels each item uses, all if None. revive: see `follow`; None leaves the tables alone.
        """
        b, d, t = z.shape
        x = z.transpose(1, 2).reshape(-1, d)
        picks, vectors = self.search(x.detach())
        reach = vectors.cumsum(0)  # what the first 1, 2, ... levels add up to
        if revive is not None:
            self.follow(x.detach()[None] - reach + vectors, picks, revive)
        levels = len(picks)
        if keep is None:
            out, commit = reach[-1], (x[None] - reach).square().mean()
        else:
            level = torch.arange(levels, device=x.device)
            on = (level[:, None] < keep[:, None].expand(-1, t).reshape(1, -1)).float()
            out = (vectors * on[..., None]).sum(0)
            commit = ((x[None] - reach).square().mean(-1) * on).mean()
        y = x + (out - x).detach()
        return y.view(b, t, d).transpose(1, 2), picks.view(levels, b, t).transpose(0, 1), commit

    @torch.no_grad()
    def follow(self, inputs: Tensor, picks: Tensor, revive: Tensor) -> None:
        """Move the tables towards what they caught: inputs (levels, N, dim), picks (levels, N).

        Where `revive` (a bool tensor) is true, codes that catch next to nothing restart at a random input.
        """
        levels, n, d = inputs.shape
        at = (picks + self.offset).view(-1)
        count = torch.zeros_like(self.usage).view(-1).index_add_(0, at, inputs.new_ones(levels * n))
        total = torch.zeros_like(self.sums).view(-1, d).index_add_(0, at, inputs.reshape(-1, d))
        self.usage.mul_(DECAY).add_(count.view_as(self.usage), alpha=1 - DECAY)
        self.sums.mul_(DECAY).add_(total.view_as(self.sums), alpha=1 - DECAY)
        even = n / self.usage.shape[1]
        dead = (self.usage < DEAD_BELOW * even) & revive
        chosen = torch.randint(n, self.usage.shape, device=inputs.device)
        fresh = inputs.gather(1, chosen[..., None].expand(-1, -1, d))
        self.sums.copy_(torch.where(dead[..., None], REBORN_AT * even * fresh, self.sums))
        self.usage.masked_fill_(dead, REBORN_AT * even)

    @torch.no_grad()
    def start_from(self, x: Tensor, step_frames: int, iterations: int = 12) -> None:
        """K-means, level by level, on projected latents x (N, dim); `step_frames`: of a training step."""
        n, levels, codes = len(x), *self.usage.shape
        for level in range(levels):
            e = x[torch.randint(n, (codes,), device=x.device)]
            e = e + 0.01 * x.std() * torch.randn_like(e)  # so that no two entries are equal
            for i in range(iterations + 1):
                bias = e.square().sum(-1) + self.penalty
                pick = torch.addmm(bias[None], x, e.t(), alpha=-2).argmin(1)
                if i == iterations:
                    break
                count = x.new_zeros(codes).index_add_(0, pick, x.new_ones(n))
                total = torch.zeros_like(e).index_add_(0, pick, x)
                spare = x[torch.randint(n, (codes,), device=x.device)]
                e = torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], spare)
            usage = x.new_zeros(codes).index_add_(0, pick, x.new_ones(n)) * step_frames / n
            usage = usage.clamp(min=0.35 * step_frames / codes)
            self.usage[level], self.sums[level] = usage, e * usage[:, None]
            x = x - e[pick]
