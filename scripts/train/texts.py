"""An endless, seeded supply of varied English sentences of 2 to 22 words (and a few of one), in plain ASCII.

Found sentences come from the pool that sentence_pool.py makes; the rest is made here: a small grammar over
the pool's words (meaningless, but good for the sounds), everyday talk, numbers, dates,
times and money, short exclamations, and pairs of clauses. Sentences held out for evaluation are never
given.
"""

import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

EVALUATION = Path(__file__).with_name("evaluation_sentences.txt")
PHRASES = Path(__file__).with_name("phrases.txt")
# Kinds of sentence and, for the templates, parts of speech that the pool holds.
FOUND = ("example", "gloss", "speech")
TAGS = ("NN", "NNS", "JJ", "JJR", "RB", "VBG", "NNP")
# Words that begin a main clause, so that two such clauses may be joined.
SUBJECTS = set(
    "I You He She It We They The My Your His Her Our Their This That These Those There".split()  # noqa: SIM905
)
MAX_WORDS = 22
# Share of each kind of sentence; "pair" joins two of the found ones.
SHARES = {
    "example": 0.27,
    "speech": 0.12,
    "gloss": 0.1,
    "everyday": 0.2,
    "number": 0.12,
    "grammar": 0.08,
    "pair": 0.06,
    "short": 0.05,
}
JOINTS = (", and", ", but", ", so", " because", " while", ", although", " when", ", or")


def phrases() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """(templates by kind, words by slot) of phrases.txt."""
    templates: dict[str, list[str]] = {}
    words: dict[str, list[str]] = {}
    for section in PHRASES.read_text().split("\n[")[1:]:
        head, *lines = section.strip().splitlines()
        kind, name = head.rstrip("]").split()
        if kind == "templates":
            templates[name] = lines
        else:
            words[name] = " ".join(lines).split(", ")
    return templates, words


def bare(text: str) -> str:
    """The words alone, in lower case: two sentences with the same ones count as the same."""
    return " ".join(re.findall(r"[a-z0-9']+", text.lower()))


def evaluation_sentences() -> list[str]:
    return EVALUATION.read_text().splitlines()


def ordinal(n: int) -> str:
    """1 gives "1st"."""
    return f"{n}{'th' if n % 100 in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


class Texts:
    """Iterator over sentences; the same seed and pool give the same ones."""

    def __init__(self, seed: int, pool: Path) -> None:
        self.random = Random(seed)
        self.held_out = {bare(text) for text in evaluation_sentences()}
        pool_by_kind: dict[str, list[str]] = {kind: [] for kind in (*FOUND, *TAGS)}
        for line in lzma.decompress(pool.read_bytes()).decode().splitlines():
            kind, text = line.split("\t", 1)
            pool_by_kind[kind].append(text)
        self.found = {kind: pool_by_kind[kind] for kind in FOUND}
        self.templates, self.words = phrases()
        self.words |= {tag: pool_by_kind[tag] for tag in TAGS}

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            kind = self.random.choices(list(SHARES), list(SHARES.values()))[0]
            text = self.pair() if kind == "pair" else self.single(kind)
            if len(text.split()) <= MAX_WORDS and bare(text) not in self.held_out:
                return text

    def single(self, kind: str) -> str:
        """One found sentence or filled template of this kind."""
        if kind in self.found:
            return self.random.choice(self.found[kind])
        return self.fill(self.random.choice(self.templates[kind]))

    def fill(self, template: str) -> str:
        """The template with every {slot} replaced, articles made to fit and the first letter a capital."""
        text = re.sub(r"\{(\w+)\}", lambda slot: self.slot(slot[1]), template)
        if "{" in text:
            return self.fill(text)
        text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU]|8|11\b|18\b)", r"\1n ", text)
        return text[0].upper() + text[1:]

    def slot(self, name: str) -> str:
        if name in self.words:
            return self.random.choice(self.words[name])
        return str(getattr(self, f"_{name}")())

    def pair(self) -> str:
        """Two short found or made clauses in one sentence."""
        first, second = (self.clause() for _ in range(2))
        if first[-1] != "." or len(first.split()) + len(second.split()) > MAX_WORDS - 1:
            return self.pair()
        if not re.match(r"I\b", second):
            second = second[0].lower() + second[1:]
        return f"{first[:-1]}{self.random.choice(JOINTS)} {second}"

    def clause(self) -> str:
        """A found sentence that begins like a main clause."""
        while True:
            text = self.random.choice(self.found[self.random.choice(("example", "example", "speech"))])
            if text.split()[0] in SUBJECTS and 3 <= len(text.split()) <= 11:
                return text

    def _small(self) -> int:
        return self.random.randint(2, 20)

    def _count(self) -> str:
        bound = self.random.choice((20, 100, 100, 1000, 1000, 10_000, 1_000_000))
        n = self.random.randint(2, bound)
        return f"{n if self.random.random() < 0.7 else round(n, -len(str(n)) + 1):,}"

    def _decimal(self) -> str:
        return f"{self.random.randint(0, 99)}.{self.random.randint(1, 9)}"

    def _money(self) -> str:
        whole = self.random.randint(1, self.random.choice((10, 100, 1000, 20_000)))
        cents = f".{self.random.choice((25, 50, 75, 99, 95, self.random.randint(10, 99)))}"
        return f"${whole:,}{cents if whole < 200 and self.random.random() < 0.5 else ''}"

    def _time(self) -> str:
        minute = self.random.choice(
            (0, 15, 30, 45, 5 * self.random.randint(0, 11), self.random.randint(1, 59))
        )
        return f"{self.random.randint(1, 12)}:{minute:02d}{self.random.choice(('', '', ' am', ' pm'))}"

    def _year(self) -> int:
        return self.random.choice((self.random.randint(1700, 1999), self.random.randint(1900, 2035)))

    def _ordinal(self) -> str:
        return ordinal(self.random.randint(1, self.random.choice((12, 31, 100))))

    def _date(self) -> str:
        month, day = self.slot("month"), self.random.randint(1, 30)
        forms = (f"{month} {day}", f"{month} {ordinal(day)}", f"the {ordinal(day)} of {month}")
        return self.random.choice(forms)

    def _hundred(self) -> int:
        return self.random.randint(2, 999)

    def _digits(self) -> str:
        """A number to be read digit by digit, such as a telephone's: "3 2 9, 7 9 2 3"."""
        groups = self.random.choice(((3, 4), (3, 3, 4), (2, 2)))
        return ", ".join(" ".join(str(self.random.randint(0, 9)) for _ in range(n)) for n in groups)
