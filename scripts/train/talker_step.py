"""One training step's losses for the talker: from a plan's indices to figures, all on the device."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.checkpoint.configs import CODE_GROUPS, CODES_PER_GROUP, END_OF_SPEECH_ID
from scripts.train import talker_rows as tr
from scripts.train.talker_data import SLOTS_PER_FRAME, Corpus, Shape
from scripts.train.talker_model import TalkerModel, look_up

# Ids of the head that take part in the loss: a multiple of 128 that holds every code and the end of speech.
HEAD_ROWS = 2176
FIGURES = (
    "steps",
    "loss",
    "group_0",
    "groups",
    "end",
    "phones",
    "voices",
    "group_0_hits",
    "group_1_hits",
    "groups_hits",
    "phone_hits",
    "voice_hits",
    "end_hits",
    "ends",
    "frames",
    "false_ends",
    "grad_norm",
    "skipped",
)


@dataclass(frozen=True)
class LossWeights:
    groups: float = 0.8
    phones: float = 0.3
    voices: float = 0.1
    smoothing: float = 0.03
    noise_group_0: float = 0.02
    noise_groups: float = 0.07
    voice_noise: float = 0.1


class TrainedTalker(nn.Module):
    """The model with the two heads that training alone needs."""

    def __init__(self, model: TalkerModel, voices: int, phones: int) -> None:
        super().__init__()
        self.model = model
        hidden = model.sizes.talker.hidden
        self.phone_head = nn.Linear(hidden, SLOTS_PER_FRAME * phones)
        self.voice_head = nn.Linear(hidden, voices)
        self.phones = phones


class StepLoss:
    """Callable on device tensors (items, clips, picks); adds its figures to `totals` [len(FIGURES)]."""

    def __init__(
        self, trained: TrainedTalker, corpus: Corpus, ids: tr.TextIds, weights: LossWeights, device: str
    ) -> None:
        self.trained, self.corpus, self.ids, self.weights = trained, corpus, ids, weights
        allowed = torch.zeros(HEAD_ROWS, dtype=torch.bool, device=device)
        allowed[1:CODES_PER_GROUP] = True
        allowed[END_OF_SPEECH_ID] = True
        self.bias = torch.zeros(HEAD_ROWS, device=device).masked_fill(~allowed, -1e4)
        used = torch.zeros(HEAD_ROWS, device=device)
        used[:CODES_PER_GROUP] = corpus.used_codes.float()
        self.spread = used / used.sum()
        depth = trained.model.sizes.depth
        chances = (
            [weights.noise_group_0] + [weights.noise_groups] * (depth - 1) + [0.0] * (CODE_GROUPS - depth)
        )
        self.swap_chance = torch.tensor(chances, device=device)
        self.device = device

    def __call__(self, shape: Shape, items: Tensor, clips: Tensor, picks: Tensor, totals: Tensor) -> Tensor:
        trained, corpus, w = self.trained, self.corpus, self.weights
        model, talker = trained.model, trained.model.talker
        training = trained.training
        rows = tr.build_rows(items, shape.rows, corpus.text.long(), self.ids)

        audio = self.clip_audio(clips, shape.clip_samples)
        vectors = model.x_vectors(audio)
        voice_logits = trained.voice_head(F.rms_norm(vectors, (vectors.shape[-1],)))
        voice_loss = F.cross_entropy(voice_logits.float(), clips[:, 3])
        if training:
            spread = vectors.detach().std() * w.voice_noise
            vectors = vectors + spread * torch.randn_like(vectors)

        fed = corpus.codes[rows.frame.clamp(min=0)].long()
        if training:
            fed = self.corrupt(fed)
        x = look_up(talker.text_rows().float(), rows.text)
        # One look-up for specials and group 0: a row has the one or the other.
        special = torch.where(rows.frame >= 0, fed[..., 0], rows.codec.clamp(min=0))
        first = look_up(talker.model.codec_embedding.weight, special)
        x = x + first * ((rows.frame >= 0) | (rows.codec >= 0))[..., None]
        rest = self.residual_rows(fed)
        x = x + rest * (rows.frame >= 0)[..., None]
        x = x + look_up(vectors, items[:, tr.CLIP])[:, None] * rows.voice[..., None]
        hidden = talker.model.run(x)

        # Group 0 and the end of speech.
        target = tr.target_codes(rows, corpus.codes[:, 0].long())
        there = (target >= 0).float()
        logits = F.linear(hidden, talker.codec_head.weight[:HEAD_ROWS]).float() + self.bias
        log_sum = logits.logsumexp(-1)
        hit_logit = logits.gather(-1, target.clamp(min=0)[..., None])[..., 0]
        nll = log_sum - hit_logit
        # Mean logit over the codes in use, without touching every logit again.
        mean_row = (self.spread[:, None] * talker.codec_head.weight[:HEAD_ROWS]).sum(0)
        smooth = log_sum - (hidden * mean_row).sum(-1)
        is_frame, is_end = (rows.target >= 0).float(), rows.end.float()
        count, ends = is_frame.sum(), is_end.sum()
        s = w.smoothing if training else 0.0
        per_row = nll * (1 - s * is_frame) + s * is_frame * smooth
        group_0_loss = (per_row * there).sum() / there.sum()

        # Phones of the coming frame.
        phone_logits = trained.phone_head(hidden).float()
        phone_logits = phone_logits.unflatten(-1, (SLOTS_PER_FRAME, trained.phones))
        phones = corpus.phones[rows.target.clamp(min=0)].long()
        phone_nll = F.cross_entropy(phone_logits.flatten(0, -2), phones.flatten(), reduction="none")
        phone_nll = phone_nll.view(phones.shape).mean(-1)
        phone_loss = (phone_nll * is_frame).sum() / count

        # The other groups, of some frames.
        flat = hidden.flatten(0, 1).index_select(0, picks)
        codes = corpus.codes[rows.target.flatten()[picks].clamp(min=0)].long()
        first = look_up(talker.model.codec_embedding.weight, codes[:, 0])
        group_logits = talker.code_predictor.logits(flat, first, codes).float()
        depth = talker.code_predictor.depth
        group_target = codes[:, 1:depth].t()
        group_nll = F.cross_entropy(group_logits.flatten(0, 1), group_target.flatten(), reduction="none")
        groups_loss = group_nll.mean()

        loss = group_0_loss + w.groups * groups_loss + w.phones * phone_loss + w.voices * voice_loss
        with torch.no_grad():
            best = logits.argmax(-1)
            hits = (best == target).float()
            group_hits = (group_logits.argmax(-1) == group_target).float()
            phone_hits = (phone_logits.argmax(-1) == phones).float().mean(-1)
            figures = {
                "steps": torch.ones((), device=self.device),
                "loss": loss,
                "group_0": (nll * is_frame).sum() / count,
                "groups": groups_loss,
                "end": (nll * is_end).sum() / ends,
                "phones": phone_loss,
                "voices": voice_loss,
                "group_0_hits": (hits * is_frame).sum() / count,
                "group_1_hits": group_hits[0].mean(),
                "groups_hits": group_hits.mean(),
                "phone_hits": (phone_hits * is_frame).sum() / count,
                "voice_hits": (voice_logits.argmax(-1) == clips[:, 3]).float().mean(),
                "end_hits": (hits * is_end).sum() / ends,
                "ends": ends,
                "frames": count,
                "false_ends": ((best == END_OF_SPEECH_ID).float() * is_frame).sum() / count,
                "grad_norm": torch.zeros((), device=self.device),
                "skipped": torch.zeros((), device=self.device),
            }
            values = torch.stack([figures[name].detach().float() for name in FIGURES])
            # A step that is not a number is left out by the optimizer, and counted as skipped.
            totals += values.nan_to_num(0.0, 0.0, 0.0)
        return loss

    def residual_rows(self, codes: Tensor) -> Tensor:
        """Embeddings of groups 1 and up of frames [..., 16], summed."""
        talker = self.trained.model.talker
        total = talker.unused_rows()
        for group in range(1, talker.code_predictor.depth):
            total = total + talker.code_predictor.embed(group, codes[..., group])
        return total

    def corrupt(self, codes: Tensor) -> Tensor:
        """Frames [items, rows, 16] with some codes swapped for those of other frames of the corpus.

        At inference the model hears its own samples, some of them wrong; it must go on all the same.
        """
        other = torch.randint(len(self.corpus.codes), codes.shape[:2], device=self.device)
        swap = torch.rand(codes.shape, device=self.device) < self.swap_chance
        return torch.where(swap, self.corpus.codes[other].long(), codes)

    @torch.no_grad()
    def clip_audio(self, clips: Tensor, samples: int) -> Tensor:
        """Crops [clips, samples] of utterances; a short one is heard again from its start."""
        place = clips[:, 2, None] + torch.arange(samples, device=self.device)
        audio = self.corpus.pcm[clips[:, 0, None] + place % clips[:, 1, None]].float() / 32768
        if self.trained.training:
            gain_db = torch.rand(len(clips), 1, device=self.device) * 12 - 8
            audio = audio * 10 ** (gain_db / 20)
        return audio


def averages(totals: Tensor) -> dict[str, float]:
    """Mean figures of the steps summed up in `totals`."""
    values = dict(zip(FIGURES, totals.tolist(), strict=True))
    steps = max(values.pop("steps"), 1.0)
    return {"steps": steps, **{name: value / steps for name, value in values.items()}}
