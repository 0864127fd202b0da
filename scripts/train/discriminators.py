"""Discriminators over complex spectra (arXiv 2210.13438) and period-folded samples (arXiv 2010.05646)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Judgement = tuple[Tensor, list[Tensor]]  # scores, features of each layer


def _judge(convs: nn.ModuleList, out: nn.Module, h: Tensor) -> Judgement:
    features = []
    for conv in convs:
        h = F.leaky_relu(conv(h), 0.2)
        features.append(h)
    return out(h), features


class SpectralDiscriminator(nn.Module):
    def __init__(self, n_fft: int, channels: int) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        wide = [nn.Conv2d(2, channels, (3, 9), padding=(1, 4))] + [
            nn.Conv2d(channels, channels, (3, 9), (1, 2), dilation=(d, 1), padding=(d, 4)) for d in (1, 2, 4)
        ]
        self.convs = nn.ModuleList(
            weight_norm(c) for c in [*wide, nn.Conv2d(channels, channels, 3, padding=1)]
        )
        self.out = weight_norm(nn.Conv2d(channels, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Judgement:
        with torch.autocast(x.device.type, enabled=False):
            s = torch.stft(x.float(), self.n_fft, self.n_fft // 4, window=self.window, return_complex=True)
            s = torch.view_as_real(s).permute(0, 3, 2, 1) / self.n_fft**0.5  # (B, 2, time, frequency)
            s = s * (s.square().sum(1, keepdim=True) + 1e-4).pow(-0.25)  # the square root of the magnitude
        return _judge(self.convs, self.out, s.contiguous(memory_format=torch.channels_last))


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.period = period
        strides = [3] * (len(channels) - 1) + [1]
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (s, 1), padding=(2, 0)))
            for a, b, s in zip((1, *channels), channels, strides, strict=False)
        )
        self.out = weight_norm(nn.Conv2d(channels[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, x: Tensor) -> Judgement:
        b, t = x.shape
        h = F.pad(x, (0, -t % self.period), mode="reflect").view(b, 1, -1, self.period)
        return _judge(self.convs, self.out, h.contiguous(memory_format=torch.channels_last))


class Discriminators(nn.Module):
    def __init__(self, channels: int = 32, periods: tuple[int, ...] = ()) -> None:
        super().__init__()
        spectral = [SpectralDiscriminator(n, channels) for n in (2048, 1024, 512, 256)]
        period = [PeriodDiscriminator(p, (16, 32, 96, 192, 192)) for p in periods]
        self.all = nn.ModuleList([*spectral, *period])

    def forward(self, x: Tensor) -> list[Judgement]:
        """x (B, samples)."""
        return [d(x) for d in self.all]


def real_fake_loss(real: list[Judgement], fake: list[Judgement]) -> Tensor:
    """Least squares: real scores to 1, made ones to 0."""
    losses = [
        (1 - r.float()).square().mean() + f.float().square().mean()
        for (r, _), (f, _) in zip(real, fake, strict=True)
    ]
    return torch.stack(losses).mean()


def fooling_loss(fake: list[Judgement]) -> Tensor:
    return torch.stack([(1 - f.float()).square().mean() for f, _ in fake]).mean()


def feature_loss(real: list[Judgement], fake: list[Judgement]) -> Tensor:
    """L1 between the features of real and made audio, relative to the real ones' size."""
    losses = [
        F.l1_loss(f.float(), r.detach().float()) / (r.detach().float().abs().mean() + 1e-3)
        for (_, rs), (_, fs) in zip(real, fake, strict=True)
        for r, f in zip(rs, fs, strict=True)
    ]
    return torch.stack(losses).mean()
