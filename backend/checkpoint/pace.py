"""Makes a random talker stop by itself, about two frames after each token of text.

Every row of a talker's input is a text row plus a codec row (only the role header
and an instruction are text alone). One channel of the hidden state, PACE, is reserved
so that these sums come out as

    text token + codec special (text in the prompt)        -rate
    text token + code frame (text streamed beside frames)   1 - rate
    padding    + code frame                                 1
    anything else                                           0

Head 0 of layer 0 has its queries set to zero, hence attends to all rows alike, and
writes the mean of PACE into a second channel, END, which nothing else touches. The
end-of-speech logit reads END alone: it is proportional to frames - rate * tokens and
crosses the other logits shortly after that turns positive. Measured over the sizes, for 17
to 108 tokens: 1.8 to 2.2 frames a token where text is streamed, 2.1 to 2.7 where it is in
the prompt, whose rows are a little quieter and so count for more. In-context cloning counts
the reference's frames against its transcript's tokens.
"""

import math
from typing import Any

from torch import Tensor

FRAMES_PER_TEXT_TOKEN = 2.0  # the small vocabulary's 2.2 characters, at 14 characters a second

_PACE, _END = 0, 1
_UNIT = 0.5  # of the PACE channel, against the other channels' RMS of about 0.9
_MARK_GAIN = 8.0  # far up SiLU, where it is linear
# End-of-speech logit per unit of (frames - rate * tokens) / rows. The other logits sum up to
# e^10 or so: with 60, speech ends some 17 to 20 % of its rows after the turning point.
_STEEPNESS = 60.0
_EARLY = 0.8  # takes those rows off again
# RMS of a row on its way in, and of the last hidden state before its norm.
_ROW_RMS = 0.9
_FINAL_RMS = 1.2


def set_pace(weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Writes the two channels into a talker's bfloat16 weights, in place."""
    talker = config["talker_config"]
    rate = FRAMES_PER_TEXT_TOKEN * _EARLY
    for name, tensor in weights.items():
        if name.endswith("codec_embedding.weight") or ".codec_embedding." in name:
            tensor[:, [_PACE, _END]] = 0
        elif name.startswith("talker.model.layers.") and name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[[_PACE, _END]] = 0

    codes = talker["code_predictor_config"]["vocab_size"]
    codec_rows = weights["talker.model.codec_embedding.weight"]
    codec_rows[:codes, _PACE] = (1 - rate) * _UNIT
    codec_rows[codes:, _PACE] = -rate * _UNIT

    # Text tokens leave PACE at 0; the three padding tokens raise it by `rate`.
    padding = [config[f"tts_{kind}_token_id"] for kind in ("pad", "bos", "eos")]
    text_rows = weights["talker.model.text_embedding.weight"]
    text_rows[:, 0] = 0
    text_rows[padding, 0] = 1
    first, second = (f"talker.text_projection.linear_fc{i}.weight" for i in (1, 2))
    weights[first][0] = 0
    weights[first][0, 0] = _MARK_GAIN
    weights[second][:, 0] = 0
    weights[second][[_PACE, _END]] = 0
    weights[second][_PACE, 0] = rate * _UNIT / (_MARK_GAIN / (1 + math.exp(-_MARK_GAIN)))

    if "speaker_encoder.fc.weight" in weights:
        # An x-vector stands where a codec special would.
        weights["speaker_encoder.fc.weight"][[_PACE, _END]] = 0
        weights["speaker_encoder.fc.bias"][_PACE] = -rate * _UNIT

    attention = "talker.model.layers.0.self_attn"
    weights[f"{attention}.q_proj.weight"][: talker["head_dim"]] = 0
    weights[f"{attention}.v_proj.weight"][0] = 0
    weights[f"{attention}.v_proj.weight"][0, _PACE] = 1
    weights[f"{attention}.o_proj.weight"][:, 0] = 0
    weights[f"{attention}.o_proj.weight"][_END, 0] = 1

    head = weights["talker.codec_head.weight"]
    head[:, [_PACE, _END]] = 0
    head[talker["codec_eos_token_id"]] = 0
    head[talker["codec_eos_token_id"], _END] = _STEEPNESS * _FINAL_RMS * _ROW_RMS / _UNIT
