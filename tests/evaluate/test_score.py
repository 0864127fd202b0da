from typing import Any

import pytest

from scripts.evaluate.report import markdown
from scripts.evaluate.score import Row, Run, groups, pair, summarise


def judged(voice: str, text: str, **changes: Any) -> Row:
    row = {
        "file": f"{voice}-{text}.wav", "voice": voice, "kind": "preset", "text": text, "reference": text,
        "heard": text, "finish_reason": "stop", "frames": 20, "duration_s": 2.0, "word_errors": 0, "words": 4,
        "character_errors": 0, "characters": 20, "dnsmos": 3.0, "distillmos": 4.0, "ttfa_s": 0.2, "rtf": 0.4,
    }  # fmt: skip
    return row | changes


def test_a_run_is_paired_with_its_voice_s_teacher_by_sentence() -> None:
    made = [judged("emma", "one"), judged("emma", "two"), judged("reader", "one"), judged("heart", "one")]
    taught = [judged("bf_emma", "two"), judged("heart", "one"), judged("bm_fable", "one")]
    teachers = [run.teacher and run.teacher["file"] for run in pair(made, taught)]
    assert teachers == [None, "bf_emma-two.wav", None, "heart-one.wav"]


def test_runs_are_grouped_by_voice_and_by_kind() -> None:
    runs = [
        Run(judged(voice, "one", kind=kind), None)
        for voice, kind in (("emma", "preset"), ("heart", "preset"), ("puck", "clone"))
    ]
    sizes = {name: len(group) for name, group in groups(runs).items()}
    assert sizes == {
        "preset emma": 1, "preset heart": 1, "clone puck": 1, "all presets": 2, "all clones": 1,
    }  # fmt: skip


def test_a_run_ends_well_only_by_itself_and_within_the_teacher_s_duration() -> None:
    teacher = judged("heart", "one", duration_s=2.0)
    runs = [
        Run(judged("heart", "one", duration_s=duration_s, finish_reason=reason), teacher)
        for duration_s, reason in (
            (2.0, "stop"),
            (1.39, "stop"),
            (2.81, "stop"),
            (2.0, "length"),
            (2.8, "stop"),
        )
    ]
    figures = summarise(runs)
    assert figures["ended_percent"] == 80
    assert figures["ended_in_time_percent"] == 40


def test_words_are_counted_over_all_runs_of_a_group() -> None:
    runs = [
        Run(judged("heart", "one", word_errors=1, words=2), judged("heart", "one")),
        Run(judged("heart", "two", word_errors=0, words=8), judged("heart", "two", word_errors=4)),
    ]
    figures = summarise(runs)
    assert figures["wer_percent"][0] == 10
    assert figures["teacher_wer_percent"][0] == 50
    assert figures["ttfa_ms"] == [200, 200]


def test_without_a_teacher_or_audio_figures_are_left_out() -> None:
    figures = summarise([Run(judged("reader", "one", ttfa_s=None, rtf=None), None)])
    for name in (
        "teacher_wer_percent",
        "ended_in_time_percent",
        "duration_ratio",
        "teacher_dnsmos",
        "ttfa_ms",
        "rtf",
    ):
        assert figures[name] is None, name


@pytest.mark.parametrize(("word_errors", "verdict"), [(0, "yes"), (1, "**no**")])
def test_the_report_says_whether_a_target_is_met(word_errors: int, verdict: str) -> None:
    runs = [Run(judged("heart", "one", word_errors=word_errors), judged("heart", "one"))]
    scores = {
        "groups": {name: summarise(group) for name, group in groups(runs).items()},
        "joints": {"joints": 9, "clicks": 0},
        "presets_apart": None,
        "clones_near": None,
        "worst": [],
    }
    lines = markdown(scores).splitlines()
    [line] = [line for line in lines if line.startswith("| word error rate")]
    assert line.endswith(f"| {verdict} |")
    assert "| clicks at 9 joints of chunks | at most 0 | 0 | yes |" in lines
