"""Writes a checkpoint with random weights, for tests and benchmarks without downloads.

    python scripts/make_checkpoint.py --size tiny --variant base --out /tmp/tiny-base

The files, parameter names and shapes are those of the published 12 Hz checkpoints of Qwen3-TTS, except
that the text vocabulary is small at every size (published: 151,936 rows), and that tiny and
small are narrower throughout. What it says is noise; it ends by itself and longer text takes longer.

    python scripts/make_checkpoint.py --family audio8 --out /tmp/tiny-audio8

writes one of Audio8 TTS, in its one size; vLLM-Omni must be installed.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from backend.checkpoint import SIZES, VARIANTS, make_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=("qwen3_tts", "audio8"), default="qwen3_tts")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--variant", choices=VARIANTS, default="base")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; files in it are replaced")
    parser.add_argument(
        "--device", default="cpu", help="where weights are drawn: cpu, or cuda for the large sizes"
    )
    args = parser.parse_args()

    start_s = time.monotonic()
    if args.family == "audio8":
        from backend.families import audio8_checkpoint

        audio8_checkpoint.make_checkpoint(args.out, args.seed)
        kind = "Audio8 TTS"
    else:
        make_checkpoint(args.out, args.size, args.variant, args.seed, args.device)
        kind = f"{args.size} {args.variant}"
    total_mb = sum(file.stat().st_size for file in args.out.rglob("*") if file.is_file()) / 1e6
    print(f"{args.out}: {kind}, {total_mb:.1f} MB, {time.monotonic() - start_s:.1f} s")


if __name__ == "__main__":
    main()
