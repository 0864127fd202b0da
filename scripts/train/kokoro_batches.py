"""Kokoro in batches through PyTorch: the engine of synthesise.py --device cuda."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from scripts.train.corpus import Utterance
from scripts.train.engines import KOKORO_SPEEDS, UNIT_SAMPLES, Kokoro, unit_durations

POOL_BATCHES = 8  # utterances of so many batches are sorted by length, so that little is padding
LONGEST_PHONES = 190  # longer ones would be too long for the corpus


class BatchedKokoro(Kokoro):
    """As Kokoro, but many utterances at once and on a GPU; see kokoro_torch.py."""

    def __init__(
        self, cache: Path, styles: Path, shares: tuple[float, float, float], device: str, batch: int
    ) -> None:
        self.device, self.batch = device.removeprefix("torch:"), batch
        super().__init__(cache, styles, shares)

    def load(self, model: Path) -> None:
        import onnx
        import torch

        from scripts.train.kokoro_torch import KokoroTorch

        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        self.network = KokoroTorch(onnx.load(str(model))).to(self.device)

    def speak_all(self, texts: Iterator[str], random: Random) -> Iterator[Utterance]:
        while True:
            pool = [(text, self.draw_voice(random)) for text in islice(texts, POOL_BATCHES * self.batch)]
            if not pool:
                return
            prepared = [(voice, text, *self.prepare(text, voice)) for text, voice in pool]
            prepared = sorted(
                (p for p in prepared if p[2] and len(p[3]) <= LONGEST_PHONES), key=lambda p: len(p[3])
            )
            starts = list(range(0, len(prepared), self.batch))
            random.shuffle(starts)
            for at in starts:
                yield from self.speak_batch(prepared[at : at + self.batch], random)

    def speak_batch(self, prepared: list[Any], random: Random) -> Iterator[Utterance]:
        import torch

        lengths = [len(ids) for *_, ids, _ in prepared]
        tokens = np.zeros((len(prepared), max(lengths)), np.int64)
        for row, (*_, ids, _) in zip(tokens, prepared, strict=True):
            row[: len(ids)] = ids
        speeds = [random.uniform(*KOKORO_SPEEDS) for _ in prepared]
        torch.manual_seed(random.getrandbits(31))
        audio, units = self.network(
            torch.from_numpy(tokens).to(self.device),
            torch.tensor(lengths),
            torch.from_numpy(np.stack([style for *_, style in prepared])).to(self.device),
            torch.tensor(speeds, device=self.device),
        )
        samples, durations = audio.float().cpu().numpy(), units.cpu().numpy()
        for (voice, text, phones, _, _), length, sound, unit in zip(
            prepared, lengths, samples, durations, strict=True
        ):
            n = int(unit.sum()) * UNIT_SAMPLES
            own = np.array(sound[:n])
            if not np.isfinite(own).all():
                continue
            yield Utterance(voice, text, f"_{phones}_", unit_durations(unit[:length], UNIT_SAMPLES, n), own)
