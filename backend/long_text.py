"""Long text cut into pieces that are spoken one after the other.

A talker drifts and repeats itself on minutes of text at once, so text is cut at the ends of
sentences. Where those are is sentencex's work: it knows the abbreviations of many languages.
"""

import re
import unicodedata
from collections.abc import Iterator

# As much as one request is good for: some 20 s of speech.
PIECE_WEIGHT = 300
# A wide character (Chinese, Japanese, Korean) is a syllable or more, a letter about a third of one.
_WIDE_WEIGHT = 3
# Ends of clauses, for sentences that are too long; behind each mark there may be a closing quote.
_CLAUSE_ENDS = re.compile(r"(?<=[,;:،؛])\s|(?<=[、，；：])|\s(?=[–—])")  # noqa: RUF001
_SHORTEST_SENTENCE = 4
_ABBREVIATIONS = (" vs.", " approx.", " ca.")
_ISO_CODES = {
    "Chinese": "zh",
    "English": "en",
    "French": "fr",
    "German": "de",
    "Italian": "it",
    "Japanese": "ja",
    "Korean": "ko",
    "Portuguese": "pt",
    "Russian": "ru",
    "Spanish": "es",
}


def pieces(text: str, language: str = "Auto") -> list[str]:
    """`text` in order, each piece whole sentences of at most PIECE_WEIGHT; what fits is one piece.

    A sentence that is too long is cut between clauses, else between words, else anywhere. Blank
    lines end a sentence, too. Pieces are about equally long, for very short ones are spoken badly.
    """
    if _weight(text) <= PIECE_WEIGHT:
        return [text]
    parts = [part for sentence in _sentences(text, language) for part in _fitting(sentence)]
    total = sum(map(_weight, parts))
    target = total / -(-total // PIECE_WEIGHT)
    packed: list[str] = []
    filled = 0.0
    for part in parts:
        weight = _weight(part)
        if packed and filled < target and filled + weight <= PIECE_WEIGHT:
            packed[-1] += part
            filled += weight
        else:
            packed.append(part)
            filled = weight
    return [piece.strip() for piece in packed if any(c.isalnum() for c in piece)]


def _sentences(text: str, language: str) -> Iterator[str]:
    """Sentences with the space that follows them; joined, they are the text."""
    import sentencex

    # Half a surrogate pair is no character, and sentencex takes none.
    text = text.encode("utf-8", "ignore").decode()
    code = _ISO_CODES.get(language) or _guess(text)
    for paragraph in re.split(r"(?<=\n)\s*\n", text):
        begun = ""
        for sentence in sentencex.segment(code, re.sub(r"\s+", " ", paragraph).strip() + " "):
            # A cut less does no harm, so a doubtful end is none.
            if _ends(begun) and not (sentence[0].islower() or sentence[0].isdigit()):
                yield begun
                begun = ""
            begun += sentence
        if begun.strip():
            yield begun


def _ends(sentence: str) -> bool:
    """Whether it is more than "M." or "1.", and no abbreviation that sentencex does not know."""
    stripped = sentence.strip()
    return len(stripped) >= _SHORTEST_SENTENCE and not stripped.endswith(_ABBREVIATIONS)


def _fitting(sentence: str) -> Iterator[str]:
    """The sentence in parts of at most PIECE_WEIGHT."""
    while (most := _longest_prefix(sentence)) < len(sentence):
        ends = [end.end() for end in _CLAUSE_ENDS.finditer(sentence, 0, most)]
        words = [end.end() for end in re.finditer(r"\s", sentence[:most])]
        # A clause of a few letters is no better a place than any word's end.
        cut = next((end for end in reversed(ends) if end > most // 3), 0) or (words[-1] if words else most)
        yield sentence[:cut]
        sentence = sentence[cut:]
    yield sentence


def _longest_prefix(sentence: str) -> int:
    weight = 0
    for index, character in enumerate(sentence):
        weight += _weight(character)
        if weight > PIECE_WEIGHT:
            return index
    return len(sentence)


def _weight(text: str) -> int:
    return sum(_WIDE_WEIGHT if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _guess(text: str) -> str:
    names = " ".join(unicodedata.name(c, "") for c in text[:200])
    for script, code in (
        ("HIRAGANA", "ja"),
        ("KATAKANA", "ja"),
        ("HANGUL", "ko"),
        ("CJK", "zh"),
        ("CYRILLIC", "ru"),
    ):
        if script in names:
            return code
    return "en"
