"""The engines that the bundled voice learnt from, speaking the sentences that it is judged on.

    python scripts/evaluate/teacher.py OUT --voices heart bf_emma am_michael --styles voices.npz
    python scripts/evaluate/teacher.py OUT --voices bm_fable --styles voices.npz --count 20
    python scripts/evaluate/teacher.py OUT --rows reference_texts.jsonl --styles voices.npz

Writes OUT/VOICE-NN.wav (24 kHz, trimmed and levelled as for training, at speed 1) and a row each to
OUT/clips.jsonl; what is there already is left. A row of --rows is {"voice", "text"}.
Runs in the venv of scripts/train/README.md.
"""

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evaluate.clips import read_rows
from scripts.train.corpus import SAMPLE_RATE_HZ, Utterance, tidy
from scripts.train.engines import Hibari, Kokoro, hibari_model, kokoro_model

logger = logging.getLogger("teacher")

SENTENCES = Path(__file__).resolve().parents[1] / "train" / "evaluation_sentences.txt"
SILENCE_MS = 90  # at each end: the middle of what training has


class AtSpeedOne(Random):
    """For engines that draw their speed: it is 1, and everything else as drawn."""

    def uniform(self, low: float, high: float) -> float:
        return 1.0


class Resampled(AtSpeedOne):
    """For hibari, which also draws the factor that it resamples by: it is `factor`."""

    def __init__(self, text: str, factor: float) -> None:
        super().__init__(text)
        self._factor = factor

    def choice(self, factors: Sequence[float]) -> float:  # type: ignore[override]
        return self._factor


class Teacher:
    """Speaks as any voice of either engine; an engine is loaded when first needed."""

    def __init__(self, cache: Path, styles: Path | None) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        self._cache, self._styles = cache, styles
        self._hibari: Hibari | None = None
        self._kokoro: Kokoro | None = None

    def speak(self, voice: str, text: str) -> Utterance:
        """Trimmed and levelled. Raises UnusableSpeechError; exits where Kokoro lacks its styles."""
        random = AtSpeedOne(text)
        if voice.startswith("heart"):
            if self._hibari is None:
                hibari_model(self._cache)
                self._hibari = Hibari(self._cache)
            self._hibari.plain_share = float(voice == "heart")
            if voice != "heart":
                random = Resampled(text, float(voice.removeprefix("heart_x")))
            speech = self._hibari.speak(text, random)
        else:
            if self._kokoro is None:
                if self._styles is None:
                    raise SystemExit(f"The voice {voice} needs --styles.")
                kokoro_model(self._cache)
                self._kokoro = Kokoro(self._cache, self._styles)
            speech = self._kokoro.speak(text, random, voice)
        return tidy(speech, SILENCE_MS, SILENCE_MS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--voices", nargs="+", default=[], help="heart and heart_x0.8 are hibari's, others Kokoro's"
    )
    parser.add_argument("--rows", type=Path, help="JSONL of voices and texts, instead of --voices")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="one a line")
    parser.add_argument("--count", type=int, help="only the first COUNT sentences")
    parser.add_argument("--styles", type=Path, help="Kokoro's style tables, made by scripts/train/styles.py")
    parser.add_argument("--cache", type=Path, default=Path("/tmp/speech_engines"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

    options.out.mkdir(parents=True, exist_ok=True)
    teacher = Teacher(options.cache, options.styles)
    if options.rows:
        wanted = [(row["voice"], row["text"]) for row in read_rows(options.rows)]
    else:
        texts = options.sentences.read_text(encoding="utf-8").splitlines()[: options.count]
        wanted = [(voice, text) for voice in options.voices for text in texts]
    numbers: Counter[str] = Counter()
    for voice, text in wanted:
        file = options.out / f"{voice}-{numbers[voice]:02d}.wav"
        numbers[voice] += 1
        if file.exists():
            continue
        samples = teacher.speak(voice, text).samples
        soundfile.write(file, np.clip(samples, -1, 1), SAMPLE_RATE_HZ, subtype="PCM_16")
        row = {"file": file.name, "text": text, "voice": voice}
        with (options.out / "clips.jsonl").open("a", encoding="utf-8") as listing:
            listing.write(json.dumps(row, ensure_ascii=False) + "\n")
        logger.info("%s, %.1f s: %s", file.name, len(samples) / SAMPLE_RATE_HZ, text)


if __name__ == "__main__":
    main()
