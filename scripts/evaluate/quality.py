"""How good clips sound, by two models of listeners' opinions: DNSMOS and DistillMOS, 1 to 5.

    python scripts/evaluate/quality.py FOLDER                   # rows in FOLDER/clips.jsonl
    python scripts/evaluate/quality.py FOLDER LISTING.jsonl --out quality.json

Listings are as for wer.py. Runs in the evaluation venv.
"""

import argparse
import json
import sys
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evaluate.clips import RATE_HZ, Clip, Samples, by_voice, load_audio, mean_interval, read_clips

# DNSMOS P.835: overall, signal, background; P.808: one score. DistillMOS: one score.
SCORES = ("dnsmos", "dnsmos_signal", "dnsmos_background", "dnsmos_p808", "distillmos")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("listing", type=Path, nargs="?", help="JSONL; default FOLDER/clips.jsonl")
    parser.add_argument("--by", default="voice", help="key of a row to make the table by")
    parser.add_argument("--out", type=Path, help="also write all figures as JSON")
    options = parser.parse_args()

    clips = read_clips(options.folder, options.listing or options.folder / "clips.jsonl", options.by)
    rated = [rate(load_audio(clip.path)) for clip in clips]
    table = summarise(clips, rated)
    print(f"{'voice':<24}{'clips':>6}" + "".join(f"{name:>19}" for name in SCORES))
    for voice, row in table.items():
        cells = (f"{row[name][0]:.2f} ({row[name][1]:.2f}-{row[name][2]:.2f})" for name in SCORES)
        print(f"{voice:<24}{row['clips']:>6}" + "".join(f"{cell:>19}" for cell in cells))
    if options.out:
        rows = [
            {"file": clip.path.name, "voice": clip.voice, **scores}
            for clip, scores in zip(clips, rated, strict=True)
        ]
        options.out.write_text(json.dumps({"voices": table, "clips": rows}, indent=1) + "\n")


def rate(samples: Samples) -> dict[str, float]:
    """The SCORES of one clip, [samples] at RATE_HZ."""
    import torch
    from speechmos import dnsmos

    # Neither model takes a clip of no length: it is rated as a second of silence.
    samples = np.pad(samples, (0, max(0, RATE_HZ - len(samples))))
    noisy = dnsmos.run(samples, RATE_HZ)
    with torch.inference_mode():
        distilled = float(_distillmos()(torch.from_numpy(samples)[None]))
    named = ("ovrl_mos", "sig_mos", "bak_mos", "p808_mos")
    return dict(zip(SCORES, [*(float(noisy[name]) for name in named), distilled], strict=True))


def summarise(clips: Sequence[Clip], rated: Sequence[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """By voice: each score's mean over clips and its 95 % interval, as [mean, low, high]."""
    return {
        voice: {"clips": len(indices)}
        | {
            name: [round(value, 3) for value in mean_interval(rated[index][name] for index in indices)]
            for name in SCORES
        }
        for voice, indices in by_voice(clips).items()
    }


@cache
def _distillmos() -> Any:
    # distillmos imports torchaudio for reading files, which we do; no torchaudio fits every torch.
    sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))
    import distillmos

    return distillmos.ConvTransformerSQAModel().eval()


if __name__ == "__main__":
    main()
