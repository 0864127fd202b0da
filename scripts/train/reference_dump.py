"""Runs a checkpoint in the reference package and keeps what passes between its parts.

    PYTHON_WITH_QWEN_TTS scripts/train/reference_dump.py CHECKPOINT CLIP.wav OUT.npz

Greedy, float32, in all four layouts of voice cloning: x-vector or in-context, text in the prompt or
streamed. For `compare_reference`, which holds our own model to it.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import soundfile
import torch
from qwen_tts import Qwen3TTSModel

TEXT = "The old harbour lights were burning low when the last of the fishing boats came home."
CLIP_TEXT = "A pot of tea helps to pass the evening."
FRAMES = 24


def main() -> None:
    checkpoint, clip, out = sys.argv[1:]
    torch.set_num_threads(2)
    model = Qwen3TTSModel.from_pretrained(checkpoint, dtype=torch.float32)
    audio, rate_hz = soundfile.read(clip, dtype="float32")
    talker = model.model.talker
    seen: dict[str, list] = {}

    def keep(name: str, value: torch.Tensor) -> None:
        seen.setdefault(name, []).append(value.detach().float().numpy())

    talker.codec_head.register_forward_hook(lambda m, i, o: keep("logits", o[:, -1]))
    for group, head in enumerate(talker.code_predictor.lm_head, start=1):
        head.register_forward_hook(lambda m, i, o, group=group: keep(f"group_{group}", o[:, -1]))
    model.model.speaker_encoder.register_forward_hook(lambda m, i, o: keep("x_vector", o))
    generate = talker.generate

    def generate_and_keep(**kwargs):
        keep("prompt", kwargs["inputs_embeds"])
        keep("trailing", kwargs["trailing_text_hidden"])
        return generate(**kwargs)

    talker.generate = generate_and_keep
    decode = model.model.speech_tokenizer.decode

    def decode_and_keep(encoded):
        seen["codes"] = [np.asarray(one["audio_codes"]) for one in encoded]
        return decode(encoded)

    model.model.speech_tokenizer.decode = decode_and_keep
    kept = {"audio": audio, "text": TEXT, "clip_text": CLIP_TEXT}
    for in_context in (False, True):
        for streamed in (False, True):
            for language in ("English", "Auto"):
                seen.clear()
                model.generate_voice_clone(
                    TEXT,
                    language=language,
                    ref_audio=(audio, rate_hz),
                    ref_text=CLIP_TEXT if in_context else None,
                    x_vector_only_mode=not in_context,
                    non_streaming_mode=not streamed,
                    do_sample=False,
                    subtalker_dosample=False,
                    max_new_tokens=FRAMES + 1,
                )
                case = f"{int(in_context)}{int(streamed)}{int(language == 'English')}"
                for name, values in seen.items():
                    array = (
                        values[0] if name in ("prompt", "trailing", "x_vector") else np.concatenate(values)
                    )
                    kept[f"{case}/{name}"] = array
    np.savez(out, **kept)
    print({name: getattr(value, "shape", "") for name, value in kept.items()})


if __name__ == "__main__":
    main()
