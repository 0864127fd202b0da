"""Trains the bundled checkpoint's tokenizer on the texts it will speak.

    python scripts/train/tokenizer.py --texts sentences.txt --out out/tokenizer
    python scripts/train/tokenizer.py --shards corpus --out out/tokenizer

Byte-level BPE with Qwen2's split pattern; writes vocab.json, merges.txt and
tokenizer_config.json. Where text is streamed, the talker hears one token a frame of
80 ms, so long pieces matter: fails below 2.2 characters a token.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backend.checkpoint.text import TextTokenizer, train_tokenizer

MIN_CHARACTERS_PER_TOKEN = 2.2
MAX_LINES = 60_000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--texts", type=Path, nargs="*", default=[], help="a sentence a line, maybe after a tab"
    )
    parser.add_argument("--shards", type=Path, nargs="*", default=[], help="folders with NAME.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=1280, help="ids in all, at most 4,000")
    options = parser.parse_args()
    lines = read_lines(options.texts, options.shards)
    random.Random(0).shuffle(lines)
    tokenizer = train_tokenizer(options.entries, lines[:MAX_LINES])
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in tokenizer.files().items():
        (options.out / name).write_text(text, encoding="utf-8")
    ratio = characters_per_token(tokenizer, lines[-2000:])
    print(f"{len(lines)} lines, {len(tokenizer.vocab)} pieces, {ratio:.2f} characters a token")
    return 0 if ratio >= MIN_CHARACTERS_PER_TOKEN else 1


def read_lines(texts: list[Path], shards: list[Path]) -> list[str]:
    """The distinct sentences of text files and of the shards' rows, sorted."""
    lines: set[str] = set()
    for file in texts:
        lines.update(line.rpartition("\t")[2] for line in file.read_text(encoding="utf-8").splitlines())
    for folder in shards:
        for file in sorted(folder.glob("*.jsonl")):
            with file.open(encoding="utf-8") as rows:
                lines.update(json.loads(row)["text"] for row in rows)
    return sorted(line.strip() for line in lines if line.strip())


def characters_per_token(tokenizer: TextTokenizer, lines: list[str]) -> float:
    encoded = tokenizer.encoder().encode_batch(lines)
    return sum(map(len, lines)) / sum(len(one.ids) for one in encoded)


if __name__ == "__main__":
    sys.exit(main())
