"""Word and character errors of what was heard against what was to be said."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

_BETWEEN_DIGITS = re.compile(r"(?<=\d)\.?(?=\d)")


@dataclass(frozen=True)
class Errors:
    """Of one clip: `words` and `characters` are the lengths of the normalised reference."""

    reference: str
    heard: str
    word_errors: int
    words: int
    character_errors: int
    characters: int


def normalise(text: str) -> str:
    """Lower-case words without punctuation, one spelling, every digit a word of its own.

    The rules are those of Whisper's own English normaliser (Radford et al. 2022, appendix C), which
    writes spelt-out numbers as digits. It joins neighbouring numbers differently by how they were
    spelt ("7:45" to "7 45", "seven forty-five" to "745", and Whisper may write "7.45"), hence the cut
    between all digits.
    """
    words = _BETWEEN_DIGITS.sub(" ", _english()(text)).split()
    return " ".join(word for word in words if any(map(str.isalnum, word)))


def errors(reference: str, heard: str) -> Errors:
    """Substitutions, deletions and insertions by least edit distance, counted by jiwer.

    Raises ValueError where nothing is left of `reference` after normalisation.
    """
    import jiwer

    right, said = normalise(reference), normalise(heard)
    if not right:
        raise ValueError(f"no words in the reference {reference!r}")
    words, characters = jiwer.process_words(right, said), jiwer.process_characters(right, said)
    return Errors(right, said, _edits(words), _length(words), _edits(characters), _length(characters))


def _edits(output: Any) -> int:
    return output.substitutions + output.deletions + output.insertions


def _length(output: Any) -> int:
    return output.hits + output.substitutions + output.deletions


@cache
def _english() -> Any:
    from whisper_normalizer.english import EnglishTextNormalizer

    return EnglishTextNormalizer()
