"""One optimisation step of the codec as a function of fixed buffers, replayed as a CUDA graph.

Eager, a step is thousands of kernel launches and the CPU sets the pace. So nothing between filling the
buffers and reading the metrics may wait for the device or depend on values from the CPU.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scripts.train.codec_data import SLOTS
from scripts.train.codec_losses import MelLoss, PhoneHead
from scripts.train.codec_model import HOP_SAMPLES, Codec
from scripts.train.discriminators import Discriminators, feature_loss, fooling_loss, real_fake_loss

log = logging.getLogger(__name__)

CONTEXT_FRAMES = 8  # decoded before a crop from the middle and thrown away: the reach of the convolutions
MEL_WEIGHT, FEATURE_WEIGHT = 15.0, 4.0
CLIP_NORM, DISCRIMINATOR_CLIP_NORM = 3.0, 10.0
METRICS = ("mel", "commit", "phone", "phone_acc", "adv", "fm", "disc", "grad", "disc_grad")


@dataclass(frozen=True)
class StepSettings:
    device: str
    batch: int
    frames: int  # encoded
    crops: int  # from each window
    crop: int  # decoded and compared, in frames
    disc_frames: int  # judged by the discriminators, the end of the crop
    phone_weight: float
    eager: bool


def graph_key(quantized: bool, middle: bool) -> tuple[str, bool]:
    return ("quantized" if quantized else "free", middle)


def crop_frames(x: Tensor, start: Tensor, frames: int) -> Tensor:
    """x (B, C, T) -> (B * K, C, frames), K crops of each item at its own starts (B, K)."""
    (b, c, _), k = x.shape, start.shape[1]
    at = (start[..., None] + torch.arange(frames, device=x.device)).view(b, 1, k * frames)
    return x.gather(2, at.expand(-1, c, -1)).view(b, c, k, frames).transpose(1, 2).reshape(b * k, c, frames)


class CodecStep:
    """Buffers in: wav, labels, keep, start, revive, adv_weight, learning rates. Out: metrics, codes."""

    def __init__(
        self,
        settings: StepSettings,
        codec: Codec,
        head: PhoneHead | None,
        discriminators: Discriminators | None,
    ) -> None:
        self.s, self.codec, self.head, self.discriminators = settings, codec, head, discriminators
        s, cuda = settings, settings.device == "cuda"
        self.mel = MelLoss().to(s.device)
        decoder = list(codec.decoder.parameters())
        self.parameters = decoder
        groups = [decoder]
        if discriminators is None:
            decoder = decoder + (list(head.parameters()) if head else [])
            groups = [decoder, list(codec.encoder.parameters())]
            self.parameters = decoder + groups[1]
        else:
            codec.encoder.requires_grad_(False)
        self.lrs = [torch.zeros((), device=s.device) for _ in range(3)]  # decoder, encoder, discriminators
        adam = {"betas": (0.8, 0.99), "weight_decay": 0.01, "fused": cuda, "capturable": cuda}
        self.optimizer = torch.optim.AdamW([{"params": g} for g in groups], lr=1e-3, **adam)
        self.optimizers = [self.optimizer]
        if discriminators is not None:
            self.disc_optimizer = torch.optim.AdamW(discriminators.parameters(), lr=1e-3, **adam)
            self.optimizers.append(self.disc_optimizer)
        self.link_lrs()

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=s.device)

        self.wav = zeros(s.batch, 1, s.frames * HOP_SAMPLES)
        self.labels = zeros(s.batch, s.frames, SLOTS, dtype=torch.long)
        self.keep, self.start = zeros(s.batch, dtype=torch.long), zeros(s.batch, s.crops, dtype=torch.long)
        self.revive, self.adv_weight = zeros(dtype=torch.bool), zeros()
        self.codes = zeros(s.batch, codec.depth, s.frames, dtype=torch.long)
        self.sums, self.count = zeros(len(METRICS)), 0
        self.graphs: dict[tuple[str, bool], torch.cuda.CUDAGraph] = {}
        self.pool: tuple[int, int] | None = None
        self.recent: deque[torch.cuda.Event] = deque()
        self.eager = s.eager or not cuda

    def link_lrs(self) -> None:
        """Let the optimisers read their learning rates from our tensors; needed again after loading state."""
        if self.s.device == "cuda":
            lrs = self.lrs if self.discriminators is None else [self.lrs[0], self.lrs[2]]
            groups = [g for o in self.optimizers for g in o.param_groups]
            for group, lr in zip(groups, lrs, strict=False):
                group["lr"] = lr

    def set_lrs(self, decoder: float, encoder: float, discriminators: float) -> None:
        for tensor, value in zip(self.lrs, (decoder, encoder, discriminators), strict=True):
            tensor.fill_(value)
        if self.s.device != "cuda":
            values = (decoder, encoder) if self.discriminators is None else (decoder, discriminators)
            groups = [g for o in self.optimizers for g in o.param_groups]
            for group, value in zip(groups, values, strict=True):
                group["lr"] = value

    def amp(self) -> AbstractContextManager[None]:
        return torch.autocast(self.s.device, dtype=torch.bfloat16, enabled=self.s.device == "cuda")

    # ------------------------------------------------------------------------------- the captured part

    def compare(self, first: Tensor, rest: Tensor, middle: bool) -> tuple[Tensor, Tensor]:
        """Decode crops, from the middle or one long one from the very start of each window.

        Audio made and real, (crops, samples) in float32.
        """
        s = self.s
        start, frames, skip = self.start, s.crop, CONTEXT_FRAMES
        if not middle:
            start, frames, skip = torch.zeros_like(start[:, :1]), s.crops * s.crop, 0
        with self.amp():
            features = crop_frames(self.codec.decoder.frames(first, rest), start - skip, frames + skip)
            made = self.codec.decoder.waveform(features)[:, 0, skip * HOP_SAMPLES :].float()
        real = crop_frames(self.wav.view(s.batch, s.frames, HOP_SAMPLES).transpose(1, 2), start, frames)
        return made, real.transpose(1, 2).reshape(len(real), -1)

    def spectral(self, quantized: bool, middle: bool) -> None:
        """Encoder, code books, decoder and phone head against spectra."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.amp():
            h = self.codec.encoder(self.wav)
        if quantized:
            first, rest, codes, commit = self.codec.quantize(h, self.keep, self.revive)
            self.codes.copy_(codes)
        else:
            with torch.autocast(self.s.device, enabled=False):
                first, rest = (q.input_proj(h.float()) for q in self.codec.quantizers)
            commit = 1e-3 * (first.square().mean() + rest.square().mean())
        mel = self.mel(*self.compare(first, rest, middle))
        loss = MEL_WEIGHT * mel + commit
        phone = accuracy = self.sums.new_zeros(())
        if self.head is not None:
            with self.amp():
                phone, accuracy = self.head(first, self.labels)
            loss = loss + self.s.phone_weight * phone
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        self.optimizer.step()
        self.add_metrics(mel=mel, commit=commit, phone=phone, phone_acc=accuracy, grad=norm)

    def adversarial(self, quantized: bool, middle: bool) -> None:
        """The decoder against spectra and discriminators; codes come from the fixed encoder."""
        judges = self.discriminators
        assert judges is not None
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():  # not in bf16, which would give other codes than encoding does
            first, rest, codes, _ = self.codec.quantize(self.codec.encoder(self.wav))
            self.codes.copy_(codes)
        made, real = self.compare(first, rest, middle)
        mel = self.mel(made, real)
        judged = self.s.disc_frames * HOP_SAMPLES
        made, real = (w[:, -judged:] if middle else w[:, :judged] for w in (made, real))
        with self.amp():
            judged_real, judged_made = judges(real), judges(made.detach())
            judge_loss = real_fake_loss(judged_real, judged_made)
        judge_loss.backward()
        judge_norm = nn.utils.clip_grad_norm_(judges.parameters(), DISCRIMINATOR_CLIP_NORM)
        self.disc_optimizer.step()
        judges.requires_grad_(False)
        with self.amp():
            judged_made = judges(made)
            adv, features = fooling_loss(judged_made), feature_loss(judged_real, judged_made)
        (MEL_WEIGHT * mel + self.adv_weight * (adv + FEATURE_WEIGHT * features)).backward()
        judges.requires_grad_(True)
        norm = nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        self.optimizer.step()
        self.add_metrics(mel=mel, adv=adv, fm=features, disc=judge_loss, grad=norm, disc_grad=judge_norm)

    def add_metrics(self, **values: Tensor) -> None:
        zero = self.sums.new_zeros(())
        self.sums.add_(torch.stack([values.get(m, zero).detach().float().reshape(()) for m in METRICS]))

    # -------------------------------------------------------------------------------------------------

    def ready(self, quantized: bool, middle: bool) -> bool:
        """Whether such a step runs without capturing a graph first."""
        return self.eager or graph_key(quantized, middle) in self.graphs

    def run(self, quantized: bool, middle: bool) -> None:
        """One step on what the buffers hold; the first of a kind takes two more before its capture."""
        body = self.spectral if self.discriminators is None else self.adversarial
        self.count += 1
        if self.eager:
            return body(quantized, middle)
        key = graph_key(quantized, middle)
        if key not in self.graphs:
            try:
                self.capture(key, body, quantized, middle)
            except RuntimeError as error:
                log.error("CAPTURE FAILED, going on eagerly and about 8 times slower: %s", error)
                self.eager = True
                return body(quantized, middle)
        self.graphs[key].replay()
        event = torch.cuda.Event()
        event.record()
        self.recent.append(event)
        if len(self.recent) > 4:  # the CPU stays at most four steps ahead, so that the clock means something
            self.recent.popleft().synchronize()

    def capture(
        self, key: tuple[str, bool], body: Callable[[bool, bool], None], quantized: bool, middle: bool
    ) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                body(quantized, middle)
                self.count += 1
        torch.cuda.current_stream().wait_stream(side)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            body(quantized, middle)
        self.pool = self.pool or graph.pool()
        self.graphs[key] = graph

    def read_metrics(self) -> tuple[dict[str, float], int]:
        """Means since the last call and the number of steps they cover; waits for the device."""
        count, values = self.count, (self.sums / max(1, self.count)).tolist()
        self.sums.zero_()
        self.count = 0
        return dict(zip(METRICS, values, strict=True)), count

    def perplexity(self, group: int) -> float:
        """Of the last batch's codes: how many codes are in use, were they used evenly."""
        share = torch.bincount(self.codes[:, group].reshape(-1), minlength=2048).float()
        share = share / share.sum()
        return float(torch.exp(-(share * (share + 1e-9).log()).sum()))

    # --------------------------------------------------------------------------------------- snapshots

    def modules(self) -> list[nn.Module]:
        return [m for m in (self.codec, self.head, self.discriminators) if m is not None]

    @torch.no_grad()
    def snapshot(self) -> list[Tensor]:
        return [t.clone() for m in self.modules() for t in m.state_dict().values()]

    @torch.no_grad()
    def restore(self, saved: list[Tensor]) -> None:
        """In place, because the graphs hold the addresses; the moments start again."""
        for t, s in zip([t for m in self.modules() for t in m.state_dict().values()], saved, strict=True):
            t.copy_(s)
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()
                state["exp_avg_sq"].zero_()
        self.sums.zero_()
        self.count = 0
