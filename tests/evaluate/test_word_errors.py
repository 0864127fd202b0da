import importlib.util
from pathlib import Path

import pytest

from scripts.evaluate.clips import Clip, by_voice, ratio_interval

needs_evaluation_packages = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jiwer", "whisper_normalizer")),
    reason="jiwer and whisper-normalizer are only in the evaluation venv (scripts/evaluate/README.md)",
)


@needs_evaluation_packages
@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        ("There were 52 of them.", "there were fifty-two of them"),
        ("It costs $4.50!", "It costs four dollars and fifty cents."),
        ("The 3rd of May, 2019", "the third of May twenty nineteen"),
        ("at 7:45 p.m.", "at seven forty-five p.m."),
        ("at 7:45 p.m.", "at 7.45 p.m."),
        ("Room 101 has 12,345 books", "room one oh one has twelve thousand three hundred forty-five books"),
        ("Mr. Brown won't go", "Mister Brown will not go"),
        ("a grey colour", "A gray color."),
    ],
)
def test_two_spellings_of_one_sentence_are_no_error(written: str, spelt: str) -> None:
    from scripts.evaluate.word_errors import errors

    found = errors(written, spelt)
    assert (found.word_errors, found.character_errors) == (0, 0)
    assert found.words >= 3


@needs_evaluation_packages
def test_a_wrong_a_missing_and_an_added_word_are_three_errors() -> None:
    from scripts.evaluate.word_errors import errors

    found = errors("The birch canoe slid on the smooth planks", "the birch canoes slid the smooth old planks")
    assert (found.word_errors, found.words) == (3, 8)
    assert 0 < found.character_errors < found.characters


@needs_evaluation_packages
def test_a_wrong_digit_is_one_error_and_silence_misses_every_word() -> None:
    from scripts.evaluate.word_errors import errors

    assert errors("forty-two people", "43 people").word_errors == 1
    nothing = errors("Nobody was there.", "")
    assert nothing.word_errors == nothing.words == 3


@needs_evaluation_packages
def test_a_reference_without_words_is_refused() -> None:
    from scripts.evaluate.word_errors import errors

    with pytest.raises(ValueError, match="no words"):
        errors("...", "something")


def test_clips_are_counted_by_voice_and_together(tmp_path: Path) -> None:
    clips = [Clip(tmp_path, "", voice) for voice in ("emma", "heart", "emma")]
    assert by_voice(clips) == {"emma": [0, 2], "heart": [1], "all": [0, 1, 2]}
    assert by_voice(clips[:1]) == {"emma": [0]}


def test_an_interval_holds_the_ratio_and_narrows_with_more_clips() -> None:
    errors, words = [0, 2, 1, 0, 3], [8, 9, 7, 8, 10]
    ratio, low, high = ratio_interval(errors, words)
    assert ratio == pytest.approx(6 / 42)
    assert low < ratio < high
    _, many_low, many_high = ratio_interval(errors * 20, words * 20)
    assert high - low > 3 * (many_high - many_low)
    assert ratio_interval([1, 2], [10, 20]) == pytest.approx((0.1, 0.1, 0.1))
