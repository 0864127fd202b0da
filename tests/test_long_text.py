# ruff: noqa: RUF001
"""Long text is cut where a reader would pause, loses nothing and keeps its order."""

import re

import pytest

from backend.contract import SpeechRequest, Task
from backend.long_text import PIECE_WEIGHT, pieces
from backend.prompt import pieces as spoken_pieces

FILLER = "Here is a plain sentence of some length that fills the piece a little further. "
CHINESE = "今天天气很好，我们决定去公园散步。"


def letters(text: str) -> str:
    return re.sub(r"\s", "", text)


def assert_whole(text: str, cut: list[str]) -> None:
    assert letters("".join(cut)) == letters(text)


@pytest.mark.parametrize("text", ["Hi.", "One. Two! Three?", FILLER * 3, CHINESE * 5, "", "no end"])
def test_what_fits_is_one_piece_and_unchanged(text: str) -> None:
    assert pieces(text) == [text]


def test_long_text_is_cut_at_sentences_into_even_pieces() -> None:
    text = FILLER * 20
    cut = pieces(text)
    assert_whole(text, cut)
    assert all(piece.endswith("further.") for piece in cut)
    lengths = [len(piece) for piece in cut]
    assert max(lengths) <= PIECE_WEIGHT
    assert min(lengths) > PIECE_WEIGHT / 3
    assert len(cut) <= 8


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("English", "Dr. Smith paid $3.14 to Mr. J. R. R. Tolkien at 5 p.m. on Jan. 5, i.e. late. "),
        ("English", "Prof. Jones of Acme Inc. said it costs 1,000.50 dollars, e.g. in the U.S. today. "),
        ("English", "See Fig. 3 of v2.0 at www.example.com for No. 5 vs. No. 6, approx. 7.5 km away. "),
        ("Auto", "Mrs. O'Neil asked: what is 2.5 percent of 10.000 in St. Mary's vs. Mt. Kent? "),
        ("German", "Am 3. Oktober war z. B. Herr Dr. Müller da und zahlte 3,50 Euro für 2,5 kg Mehl. "),
        ("French", "M. Dupont a mangé 3,5 kg de pommes avec Mme Martin dans la rue de l'Église. "),
        ("Chinese", "圆周率大约是3.14，这个数字很有名。"),
        ("Japanese", "成長率は3.5％で、とても高い数字です。"),
        ("Auto", "他说今天的价格是3.14元，明天会更高！"),
    ],
)
def test_abbreviations_and_numbers_stay_whole(language: str, sentence: str) -> None:
    text = sentence * 30
    cut = pieces(text, language)
    assert_whole(text, cut)
    assert len(cut) > 2
    end = sentence.strip()[-3:]
    assert [piece for piece in cut if not piece.endswith(end)] == []


def test_wide_characters_count_for_more() -> None:
    cut = pieces(CHINESE * 20, "Chinese")
    assert_whole(CHINESE * 20, cut)
    assert max(map(len, cut)) <= PIECE_WEIGHT / 3
    assert all(piece.endswith("。") for piece in cut)


def test_quotes_stay_with_their_sentence() -> None:
    text = ('She asked, "Is it far?" and he said, "No." ' + FILLER) * 6
    for piece in pieces(text):
        assert piece.count('"') % 2 == 0


def test_a_sentence_that_is_too_long_is_cut_between_clauses() -> None:
    text = "and then the next of many clauses comes along, " * 20
    cut = pieces(text)
    assert_whole(text, cut)
    assert all(piece.endswith(",") for piece in cut)
    assert max(map(len, cut)) <= PIECE_WEIGHT


def test_without_clauses_it_is_cut_between_words_and_without_words_anywhere() -> None:
    words = "word " * 200
    cut = pieces(words)
    assert_whole(words, cut)
    assert {word for piece in cut for word in piece.split()} == {"word"}
    cut = pieces("x" * 1000)
    assert_whole("x" * 1000, cut)
    assert max(map(len, cut)) <= PIECE_WEIGHT


def test_a_blank_line_ends_a_sentence() -> None:
    text = (
        "A heading without a full stop\n\n" + "Its text goes on\nover the line and so on without an end " * 6
    )
    assert "heading without a full stop Its" not in " ".join(pieces(text)[:1]) or len(pieces(text)) == 1
    assert_whole(text, pieces(text))


def test_pieces_without_anything_to_say_are_left_out() -> None:
    text = FILLER * 4 + "... !!! " * 60
    assert all(any(c.isalnum() for c in piece) for piece in pieces(text))


def test_odd_characters_do_no_harm() -> None:
    text = "Half \ud800 a pair, nul \x00 and \u202e marks 👋🏽. " * 30
    assert_whole(text.replace("\ud800", ""), pieces(text))


def test_a_designed_voice_is_not_cut() -> None:
    request = SpeechRequest(FILLER * 20, Task.VOICE_DESIGN, instruction="Calm.")
    assert spoken_pieces(request) == [FILLER * 20]


def test_a_text_of_control_characters_costs_no_more_than_what_is_left_of_it() -> None:
    request = SpeechRequest("a" + "\x00" * 499_998 + "b", Task.VOICE_CLONE)
    assert spoken_pieces(request) == ["a b"]
    paragraphs = SpeechRequest(FILLER * 4 + "\n \n" + "\x07" * 10 + FILLER * 4, Task.VOICE_CLONE)
    assert len(spoken_pieces(paragraphs)) > 1
    assert not any("\x07" in piece for piece in spoken_pieces(paragraphs))
