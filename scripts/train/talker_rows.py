"""The talker's input rows for training, exactly as inference builds them for a cloned voice.

Layout of one item (qwen-tts 0.1.1, `generate` and `generate_icl_prompt`; vLLM-Omni's
prompt_embeds_builder.py), a text part plus a codec part in each row:

    role                3 rows, text alone
    tts_pad             + think, think_bos, language, think_eos  (or nothink, think_bos, think_eos)
    tts_pad             + the voice's x-vector
    tts_bos             + codec_pad
    text in the prompt: text, tts_eos      + codec_pad, then tts_pad + codec_bos, frame 0, frame 1, ...
    text streamed:      text, tts_eos, tts_pad, ...          + codec_bos, frame 0, frame 1, ...

The row that carries frame t - 1 (codec_bos for t = 0) predicts frame t; the last frame's row predicts
the end of speech. An in-context item is the same with the reference's text and frames in front of
its own, and so is any longer utterance made of two. Everything here is integer arithmetic on tensors
of fixed shapes: it runs inside a CUDA graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.checkpoint.configs import END_OF_SPEECH_ID
from backend.checkpoint.text import TextTokenizer

CODEC_PAD, CODEC_BOS = 2148, 2149
THINK, NOTHINK, THINK_BOS, THINK_EOS = 2154, 2155, 2156, 2157
ENGLISH = 2050
ROLE_ROWS = 3
NONE = -1

# Columns of an item: an int64 tensor [items, ITEM_COLUMNS].
(
    HAS_LANGUAGE,
    STREAMED,
    TEXT_START_1,
    TEXT_LENGTH_1,
    TEXT_START_2,
    TEXT_LENGTH_2,
    FRAME_START_1,
    FRAMES_1,
    FRAME_START_2,
    FRAMES_2,
    CLIP,
) = range(11)
ITEM_COLUMNS = 11


@dataclass(frozen=True)
class TextIds:
    """The tokens the layout itself needs."""

    role: tuple[int, int, int]
    pad: int
    bos: int
    eos: int


def text_ids(tokenizer: TextTokenizer) -> TextIds:
    newline = tokenizer.vocab["\u010a"]  # "\n" as byte-level BPE writes it
    role = (tokenizer.token_id("<|im_start|>"), tokenizer.token_id("assistant"), newline)
    pad, bos, eos = (tokenizer.token_id(f"<tts_{name}>") for name in ("pad", "text_bos", "text_eod"))
    return TextIds(role, pad, bos, eos)


@dataclass
class Rows:
    """What each row [items, rows] holds: ids, or indices of frames in the corpus; NONE where nothing."""

    text: Tensor  # id of the text part, always there
    codec: Tensor  # id of a codec special
    frame: Tensor  # frame fed back
    voice: Tensor  # bool: the x-vector's row
    target: Tensor  # frame to predict
    end: Tensor  # bool: the end of speech to predict


def prefix_rows(has_language: Tensor | bool) -> Tensor | int:
    """Rows before the text: role, think tags, voice, and tts_bos + codec_pad."""
    return ROLE_ROWS + 3 + has_language + 2


def item_rows(items: Tensor) -> Tensor:
    """Rows each item takes, the last predicting the end of speech."""
    text = items[:, TEXT_LENGTH_1] + items[:, TEXT_LENGTH_2]
    frames = items[:, FRAMES_1] + items[:, FRAMES_2]
    return prefix_rows(items[:, HAS_LANGUAGE]) + (1 - items[:, STREAMED]) * (text + 1) + frames + 1


def build_rows(items: Tensor, rows: int, flat_text: Tensor, ids: TextIds) -> Rows:
    """Lays out items [items, ITEM_COLUMNS] in `rows` rows each; `flat_text` holds all utterances' tokens."""
    columns = [items[:, i, None] for i in range(ITEM_COLUMNS)]
    language, streamed = columns[HAS_LANGUAGE], columns[STREAMED].bool()
    text_1, text = columns[TEXT_LENGTH_1], columns[TEXT_LENGTH_1] + columns[TEXT_LENGTH_2]
    frames_1, frames = columns[FRAMES_1], columns[FRAMES_1] + columns[FRAMES_2]
    row = torch.arange(rows, device=items.device)[None]
    prefix = prefix_rows(language)
    body = row - prefix
    # Counted from the codec_bos row, which comes at once or after the whole text and its eos.
    step = torch.where(streamed, body, body - (text + 1))

    first = columns[TEXT_START_1] + body
    second = columns[TEXT_START_2] + body - text_1
    place = torch.where(body < text_1, first, second).clamp(0, len(flat_text) - 1)
    spoken = torch.where(body < text, flat_text[place], torch.where(body == text, ids.eos, ids.pad))
    header = torch.where(row == prefix - 1, ids.bos, ids.pad)
    for i, token in enumerate(ids.role):
        header = torch.where(row == i, token, header)
    text_id = torch.where(body < 0, header, spoken)

    tag = row - ROLE_ROWS
    with_language = _chosen(tag, (THINK, THINK_BOS, ENGLISH, THINK_EOS))
    without = _chosen(tag, (NOTHINK, THINK_BOS, THINK_EOS))
    codec = torch.where(language.bool(), with_language, without)
    codec = torch.where(row == prefix - 1, CODEC_PAD, codec)
    codec = torch.where(~streamed & (body >= 0) & (body <= text), CODEC_PAD, codec)
    codec = torch.where((body >= 0) & (step == 0), CODEC_BOS, codec)

    def corpus_frame(t: Tensor) -> Tensor:
        inside = (body >= 0) & (t >= 0) & (t < frames)
        index = torch.where(t < frames_1, columns[FRAME_START_1] + t, columns[FRAME_START_2] + t - frames_1)
        return torch.where(inside, index, NONE)

    return Rows(
        text=text_id,
        codec=codec,
        frame=corpus_frame(step - 1),
        voice=row == prefix - 2,
        target=corpus_frame(step),
        end=(body >= 0) & (step == frames),
    )


def _chosen(tag: Tensor, ids: tuple[int, ...]) -> Tensor:
    chosen = torch.full_like(tag, NONE)
    for i, value in enumerate(ids):
        chosen = torch.where(tag == i, value, chosen)
    return chosen


def target_codes(rows: Rows, group_0: Tensor) -> Tensor:
    """Ids to predict [items, rows]: the frame's group 0 code, the end of speech, or NONE."""
    code = torch.where(rows.target >= 0, group_0[rows.target.clamp(min=0)], NONE)
    return torch.where(rows.end, END_OF_SPEECH_ID, code)
