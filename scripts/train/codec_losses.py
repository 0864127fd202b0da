"""Losses of codec training: spectra at several resolutions, and phones read off the first code group."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train.codec_data import SILENCE, SLOTS, UNKNOWN
from scripts.train.codec_model import SAMPLE_RATE_HZ

# Added to mel magnitudes before the logarithm (a full-scale sine is 1), lest near-silence own the gradient.
FLOOR = 2e-4
QUIET_WEIGHT = 0.1  # of slots without a sound, in the phone loss


class MelLoss(nn.Module):
    """L1 between log10 mel magnitudes at six window lengths, and a little of the linear ones."""

    SCALES = ((64, 8), (128, 16), (256, 32), (512, 64), (1024, 100), (2048, 160))  # window, bands

    def __init__(self) -> None:
        super().__init__()
        for n, bands in self.SCALES:
            self.register_buffer(f"window{n}", torch.hann_window(n), persistent=False)
            self.register_buffer(f"bank{n}", mel_bank(n, bands), persistent=False)

    def spectrum(self, x: Tensor, n: int) -> Tensor:
        window = getattr(self, f"window{n}")
        return torch.stft(x, n, n // 4, window=window, return_complex=True).abs() * (2 / (n / 2))

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """y (made) and x (real), both (B, samples) in float32."""
        loss = y.new_zeros(())
        for n, _ in self.SCALES:
            bank, sy, sx = getattr(self, f"bank{n}"), self.spectrum(y, n), self.spectrum(x, n)
            log_y, log_x = ((bank @ s + FLOOR).log10() for s in (sy, sx))
            loss = loss + F.l1_loss(log_y, log_x) + 0.1 * F.l1_loss(sy, sx) / (sx.mean() + 1e-3)
        return loss / len(self.SCALES)


def mel_bank(n_fft: int, bands: int) -> Tensor:
    """(bands, n_fft / 2 + 1) triangles on the HTK scale over 0 to 12 kHz, each summing to 1."""
    top = 2595 * math.log10(1 + SAMPLE_RATE_HZ / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2, dtype=torch.float64) / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE_HZ / 2, n_fft // 2 + 1, dtype=torch.float64)
    widths = edges.diff().clamp(min=SAMPLE_RATE_HZ / n_fft)[
        :, None
    ]  # at least a bin, or a band would be empty
    rise, fall = (bins - edges[:-2, None]) / widths[:-1], (edges[2:, None] - bins) / widths[1:]
    bank = torch.minimum(rise, fall).clamp(min=0)
    return (bank / bank.sum(1, keepdim=True).clamp(min=1e-8)).float()


class PhoneHead(nn.Module):
    """Reads the phone of every 20 ms off the vectors of group 0, looking one or two frames to both sides.

    It makes group 0 carry what is said, as distillation from a speech model does in Mimi.
    """

    def __init__(self, dim: int, classes: int, hidden: int = 256) -> None:
        super().__init__()
        self.classes = classes
        self.a, self.b = nn.Conv1d(dim, hidden, 3, padding=1), nn.Conv1d(hidden, hidden, 3, padding=1)
        self.out = nn.Conv1d(hidden, SLOTS * classes, 1)

    def forward(self, first: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """first (B, dim, T), labels (B, T, 4) -> cross-entropy, share of sounding slots read correctly."""
        h = self.out(F.gelu(self.b(F.gelu(self.a(first))))).float()
        b, _, t = h.shape
        logits = h.view(b, SLOTS, self.classes, t).permute(0, 3, 1, 2)  # (B, T, 4, classes)
        known = labels != UNKNOWN
        target = torch.where(known, labels, SILENCE)
        sounds = (known & (target != SILENCE)).float()
        weight = sounds + QUIET_WEIGHT * (known & (target == SILENCE)).float()
        entropy = -logits.log_softmax(-1).gather(-1, target[..., None])[..., 0]
        right = (logits.argmax(-1) == target).float() * sounds
        return (entropy * weight).sum() / weight.sum().clamp(min=1), right.sum() / sounds.sum().clamp(min=1)
