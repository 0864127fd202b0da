"""The rows the talker is trained on are those inference builds."""

import pytest
import torch

from scripts.train import talker_rows as tr

IDS = tr.TextIds(role=(900, 901, 902), pad=903, bos=904, eos=905)
TEXT = torch.arange(100)


def item(**columns: int) -> torch.Tensor:
    row = torch.zeros(1, tr.ITEM_COLUMNS, dtype=torch.long)
    for name, value in columns.items():
        row[0, getattr(tr, name.upper())] = value
    return row


def layout(one: torch.Tensor, extra: int = 2) -> list[tuple]:
    """(text, codec special or None, frame or None, what is predicted) a row, the voice's row marked."""
    rows = tr.build_rows(one, int(tr.item_rows(one)) + extra, TEXT, IDS)
    out = []
    for i in range(rows.text.shape[1]):
        codec, frame, target = (int(t[0, i]) for t in (rows.codec, rows.frame, rows.target))
        predicted = "end" if rows.end[0, i] else target if target >= 0 else None
        special = "voice" if rows.voice[0, i] else codec if codec >= 0 else None
        out.append((int(rows.text[0, i]), special, frame if frame >= 0 else None, predicted))
    return out


PREFIX = [
    (900, None, None, None),
    (901, None, None, None),
    (902, None, None, None),
    (903, 2154, None, None),
    (903, 2156, None, None),
    (903, 2050, None, None),
    (903, 2157, None, None),
    (903, "voice", None, None),
    (904, 2148, None, None),
]
AUTO_PREFIX = [*PREFIX[:3], (903, 2155, None, None), (903, 2156, None, None), *PREFIX[6:]]


def test_streamed_text_gives_one_token_a_frame_then_its_end_then_padding() -> None:
    one = item(has_language=1, streamed=1, text_start_1=10, text_length_1=2, frame_start_1=50, frames_1=4)
    expected = [
        *PREFIX,
        (10, 2149, None, 50),
        (11, None, 50, 51),
        (905, None, 51, 52),
        (903, None, 52, 53),
        (903, None, 53, "end"),
    ]
    assert layout(one)[:14] == expected
    assert all(predicted is None and frame is None for *_, frame, predicted in layout(one)[14:])


def test_text_in_the_prompt_comes_whole_before_the_first_frame() -> None:
    one = item(has_language=0, streamed=0, text_start_1=10, text_length_1=2, frame_start_1=50, frames_1=2)
    expected = [
        *AUTO_PREFIX,
        (10, 2148, None, None),
        (11, 2148, None, None),
        (905, 2148, None, None),
        (903, 2149, None, 50),
        (903, None, 50, 51),
        (903, None, 51, "end"),
    ]
    assert layout(one, extra=0) == expected


@pytest.mark.parametrize("streamed", [0, 1])
def test_an_in_context_item_is_laid_out_as_one_longer_utterance(streamed: int) -> None:
    whole = item(streamed=streamed, text_start_1=10, text_length_1=5, frame_start_1=50, frames_1=7)
    parts = item(
        streamed=streamed,
        text_start_1=10,
        text_length_1=3,
        text_start_2=13,
        text_length_2=2,
        frame_start_1=50,
        frames_1=3,
        frame_start_2=53,
        frames_2=4,
    )
    assert layout(parts) == layout(whole)


def test_a_text_longer_than_its_speech_still_predicts_every_frame_and_the_end() -> None:
    one = item(streamed=1, text_length_1=30, frame_start_1=50, frames_1=4)
    predicted = [p for *_, p in layout(one, extra=0) if p is not None]
    assert predicted == [50, 51, 52, 53, "end"]
