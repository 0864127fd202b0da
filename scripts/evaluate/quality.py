"""How good clips sound, by two models of listeners' opinions: DNSMOS and DistillMOS, 1 to 5.

    python scripts/evaluate/quality.py FOLDER                   # rows in FOLDER/clips.jsonl
    python scripts/evaluate/quality.py FOLDER LISTING.jsonl --out quality.json

Listings are as for wer.py. Runs in the evaluation venv.
"""

import argparse
import json
import os
import sys
import types
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evaluate.clips import RATE_HZ, Clip, Samples, by_voice, load_audio, mean_interval, read_clips

# DNSMOS P.835: overall, signal, background; P.808: one score. DistillMOS: one score.
SCORES = ("dnsmos", "dnsmos_signal", "dnsmos_background", "dnsmos_p808", "distillmos")

DNSMOS_WINDOW_S = 9.01


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("listing", type=Path, nargs="?", help="JSONL; default FOLDER/clips.jsonl")
    parser.add_argument("--by", default="voice", help="key of a row to make the table by")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="clips at once")
    parser.add_argument("--out", type=Path, help="also write all figures as JSON")
    options = parser.parse_args()

    clips = read_clips(options.folder, options.listing or options.folder / "clips.jsonl", options.by)
    rated = rate_all([clip.path for clip in clips], options.workers)
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


def rate_all(paths: Sequence[Path], workers: int) -> list[dict[str, float]]:
    """The SCORES of each file, several files at once."""
    _dnsmos(), _distillmos()
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda path: rate(load_audio(path)), paths))


def rate(samples: Samples) -> dict[str, float]:
    """The SCORES of one clip, [samples] at RATE_HZ."""
    import torch

    # Neither model takes a clip of no length: it is rated as a second of silence.
    samples = np.pad(samples, (0, max(0, RATE_HZ - len(samples))))
    # Left to itself DNSMOS doubles a clip until it exceeds its window, and rates a window for each second.
    window = int(DNSMOS_WINDOW_S * RATE_HZ)
    noisy = _dnsmos()(samples if len(samples) > window else np.resize(samples, window), RATE_HZ, False)
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
def _dnsmos() -> Any:
    import onnxruntime
    from speechmos import dnsmos

    folder = Path(dnsmos.__file__).parent / "dnsmos_models"
    judge = dnsmos.DNSMOS(str(folder / "sig_bak_ovr.onnx"), str(folder / "model_v8.onnx"))
    # Its own sessions take every core for each clip, and wait for one another by spinning.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    judge.onnx_sess = onnxruntime.InferenceSession(judge.primary_model_path, options)
    judge.p808_onnx_sess = onnxruntime.InferenceSession(str(folder / "model_v8.onnx"), options)
    return judge


@cache
def _distillmos() -> Any:
    # distillmos imports torchaudio for reading files, which we do; no torchaudio fits every torch.
    sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))
    import distillmos
    import torch

    torch.set_num_threads(1)
    return distillmos.ConvTransformerSQAModel().eval()


if __name__ == "__main__":
    main()
