"""A small byte-level BPE tokenizer in the Qwen2 format, trained on the spot.

It has the pre-tokenizer and the added tokens of the published tokenizer, so the
chat templates that vLLM-Omni slices by position ("<|im_start|>assistant\\n" is
three ids) come out the same; only the vocabulary is smaller.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# The split pattern of Qwen2Tokenizer (transformers, models/qwen2/tokenization_qwen2.py).
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The published tokenizer's added tokens in id order, and whether each is "special".
_ADDED_TOKENS: tuple[tuple[str, bool], ...] = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
    ("<|audio_start|>", True),
    ("<|audio_end|>", True),
    ("<tts_pad>", True),
    ("<tts_text_bos>", True),
    ("<tts_text_eod>", True),
    ("<tts_text_bos_single>", True),
    ("<|audio_pad|>", True),
)
_SPARE_ROWS = 8  # unused rows at the end of the embedding table, as the published one has
_CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Each must be one token: the prompt builder of vLLM-Omni cuts the templates at fixed positions.
_ROLES = ("assistant", "user", "system")
_ROLE_WEIGHT = 400  # repetitions, so that the roles are merged before anything else

_TRAINING_TEXT = """
Hello, and welcome. Thank you for trying this out. How are you feeling this morning?
I was thinking about what you said yesterday, and I believe that you were right about most of it.
Could you please tell me when the next train is leaving, and which platform it will be on?
We have been waiting here for more than an hour, but nobody has come to open the door.
She wanted to know where they were going, so he showed her the way on an old map.
There is nothing better than a hot cup of coffee after a long walk in the rain.
My sister works at the hospital in town; her husband teaches children to read and write.
If everything goes well, the new house should be ready before the end of the summer.
They would have called us earlier, only the phone had been left in the car again.
It is not always easy to say no, even though sometimes that is the only honest answer.
Please remember to turn off the lights and close the window before you go to bed.
The meeting has been moved to Thursday at ten; everyone should bring something to write with.
What a wonderful surprise! I never thought I would see all of you together in one place.
He looked at the sky, then at the river, and finally decided that it was time to start.
These small changes make the whole system much faster, and they do not cost very much.
A good story needs a beginning, a middle and an ending, though perhaps not in that order.
Don't worry, we'll find another way. That isn't what I meant, and you've always known it.
The little boat came back to the harbour with the last of the evening light behind it.
One, two, three, four, five, six, seven, eight, nine, ten, twenty, thirty, a hundred, a thousand.
Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday; January, March, April, June, July.
Nobody could understand how such a large animal had been able to get over the garden wall.
Speak slowly and clearly, please, in a warm and friendly voice, as if to an old friend.
This sentence is spoken with excitement; the next one should sound calm, low and serious.
When the people of the village heard the music, they left their work and ran into the street.
First mix the butter with the sugar, then add the eggs, the flour and a little salt.
Many years later, the same question was asked again by another student in another country.
Computers can read a text aloud, but listening carefully is something that people do better.
You can stop at any time by pressing the button, or wait until the audio has finished playing.
The weather will remain dry in the south, with strong winds and some showers further north.
Our flight was delayed because of the storm, and we did not arrive until after midnight.
Under the bridge, where the water is deep and quiet, an enormous fish has lived for years.
Let me explain what happened from the start, without leaving out any of the strange parts.
"""


@dataclass(frozen=True)
class TextTokenizer:
    """A trained tokenizer: piece to id, the merges in order, and the added tokens' ids."""

    vocab: dict[str, int]
    merges: tuple[tuple[str, str], ...]
    added: dict[str, int]

    def token_id(self, token: str) -> int:
        """Raises KeyError for a token that is neither a piece nor an added token."""
        return self.added[token] if token in self.added else self.vocab[token]

    def encoder(self) -> Tokenizer:
        """The tokenizer ready to encode plain text: the added tokens are not looked for in it."""
        return _pipeline(
            models.BPE(vocab=self.vocab, merges=list(self.merges), fuse_unk=False, byte_fallback=False)
        )

    def files(self) -> dict[str, str]:
        """The tokenizer's files by name: vocab.json, merges.txt and tokenizer_config.json."""
        merges = "".join(f"{left} {right}\n" for left, right in self.merges)
        return {
            "vocab.json": json.dumps(self.vocab, ensure_ascii=False, indent=2) + "\n",
            "merges.txt": "#version: 0.2\n" + merges,
            "tokenizer_config.json": json.dumps(self._config(), ensure_ascii=False, indent=2) + "\n",
        }

    def _config(self) -> dict[str, Any]:
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        return {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {
                str(self.added[token]): {"content": token, **flags, "special": special}
                for token, special in _ADDED_TOKENS
            },
            "additional_special_tokens": [
                t for t, special in _ADDED_TOKENS if special and t != "<|endoftext|>"
            ],
            "bos_token": None,
            "chat_template": _CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "processor_class": "Qwen3TTSProcessor",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        }


def read_tokenizer(folder: Path) -> TextTokenizer:
    """The tokenizer whose `files` lie in `folder`."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    pairs = (line.split(" ") for line in merges if line)
    added = {entry["content"]: int(i) for i, entry in config["added_tokens_decoder"].items()}
    return TextTokenizer(vocab, tuple((left, right) for left, right in pairs), added)


def _pipeline(model: models.BPE) -> Tokenizer:
    """`model` between the normalizer, pre-tokenizer and decoder of Qwen2Tokenizer."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(text_vocab: int, lines: Sequence[str] | None = None) -> TextTokenizer:
    """Trains a tokenizer whose ids, added tokens included, stay below `text_vocab`.

    `lines` are the texts to learn pieces from; without them, two pages of plain English. A piece
    that occurs once is kept only there, where every byte counts.
    """
    tokenizer = _pipeline(models.BPE(fuse_unk=False, byte_fallback=False))
    trainer = trainers.BpeTrainer(
        vocab_size=text_vocab - len(_ADDED_TOKENS) - _SPARE_ROWS,
        min_frequency=1 if lines is None else 2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    lines = lines or _TRAINING_TEXT.strip().split("\n")
    # Often enough to be merged among the first, however long the texts are.
    roles = [f"{role}\n" for role in _ROLES] * max(_ROLE_WEIGHT, len(lines))
    tokenizer.train_from_iterator([*roles, *lines], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    added = {token: len(vocab) + i for i, (token, _) in enumerate(_ADDED_TOKENS)}
    return TextTokenizer(vocab, tuple((left, right) for left, right in model["merges"]), added)
