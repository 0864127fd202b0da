"""Packs Kokoro's style tables, from npm's kokoro-js 1.2.1, into one small .npz for the engine.

    python -m scripts.train.styles VOICES_FOLDER voices.npz

Each .bin is float32 [510, 1, 256], a row for each number of phones. The first rows suffice for utterances
of ten seconds; they are kept in float16.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 200
# Accents of other languages that stay clear in English.
ACCENTS = ("ff_siwis", "if_sara", "im_nicola", "jf_alpha", "pf_dora", "pm_alex")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tables: dict[str, Any] = {
        path.stem: np.fromfile(path, np.float32).reshape(510, 256)[:ROWS].astype(np.float16)
        for path in sorted(args.folder.glob("*.bin"))
        if path.stem[0] in "ab" or path.stem in ACCENTS
    }
    np.savez_compressed(args.out, **tables)
    print(len(tables), "voices,", args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
