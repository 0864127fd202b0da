"""Speaks with the reference package, qwen-tts, and keeps what our engine must agree with.

    .venv-reference/bin/python -m scripts.reference.capture CHECKPOINT OUT

CHECKPOINT is any folder in the layout of a Qwen3-TTS 12 Hz checkpoint; `cases` says what is spoken.
OUT gets manifest.json and, for each case, an npz of arrays and a FLAC of the first frames. README.md
beside this file lists what is in them.
"""

import hashlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import soundfile
import torch
import yaml

from scripts.reference.cases import CASES, Case
from scripts.reference.observed import Array, ObservedModel
from scripts.reference.processor import processor

VOICES = Path(__file__).resolve().parents[2] / "assets" / "voices"
RATE_HZ = 24_000
# Appended to a clip cloned in context: what backend.reference_audio does before the engine encodes it.
ONSET_SILENCE_S = 0.5
# How much of a greedy case's logits and waveform is kept; the waveform's checksum is of all of it.
LOGITS_STEPS = 3
WAVEFORM_FRAMES = 24
INT16_MAX = 32767
# Longer than the 10 s window of the codec encoder's attention.
LONG_CLIP_VOICES = ("clara", "hugo", "nora")
PACKAGES = ("qwen-tts", "torch", "transformers", "tokenizers", "numpy", "librosa")


def main() -> None:
    checkpoint, out = (Path(argument).resolve() for argument in sys.argv[1:])
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    observed = ObservedModel(str(checkpoint))
    kind = observed.model.model.tts_model_type
    manifest: dict[str, Any] = {
        "made_with": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "processor": processor(),
        "checkpoint": {
            "model_type": kind,
            "sha256": {
                name: _sha256((checkpoint / name).read_bytes())
                for name in ("config.json", "model.safetensors", "speech_tokenizer/model.safetensors")
            },
        },
        "constants": _constants(observed),
        "onset_silence_s": ONSET_SILENCE_S,
        "cases": {},
    }
    for case in CASES[kind]:
        arrays, facts, waveform = _capture(observed, case)
        np.savez_compressed(out / f"{case.name}.npz", **arrays)
        if not case.sampled:
            head = waveform[: WAVEFORM_FRAMES * manifest["constants"]["samples_per_frame"]]
            # Rounded as the engine rounds what it gives out.
            pcm = np.rint(np.clip(head, -1, 1) * INT16_MAX).astype(np.int16)
            soundfile.write(out / f"{case.name}.flac", pcm, RATE_HZ, subtype="PCM_16")
        manifest["cases"][case.name] = facts
        print(f"{case.name}: {facts['frames']} frames, ended by {facts['ended_by']}")
    if kind == "base":
        clip = np.concatenate([_clip(voice)[0] for voice in LONG_CLIP_VOICES])
        codes = observed.model.model.speech_tokenizer.encode(clip, sr=RATE_HZ).audio_codes[0].numpy()
        np.savez_compressed(out / "long_clip.npz", codes=codes.astype(np.int16))
        manifest["long_clip"] = {"voices": LONG_CLIP_VOICES, "samples": len(clip), "frames": len(codes)}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {time.monotonic() - started:.0f} s")


def _capture(observed: ObservedModel, case: Case) -> tuple[dict[str, Array], dict[str, Any], Array]:
    """Arrays, facts for the manifest, and the waveform, float32 [samples]."""
    observed.reset(eager_to_end=case.eager_to_end)
    torch.manual_seed(case.seed)
    waveform, rate_hz = _speak(observed, case)
    seen = observed.seen
    tokens, frames = seen["talker_tokens"][0], seen["frames"][0]
    generation = seen["generation"][0]
    end = generation["eos_token_id"]
    ended = bool(len(tokens) and tokens[-1] == end)
    # The last token is the end of speech, or one whose residual codes were never predicted.
    codes = frames[: len(tokens) - 1]
    groups = codes.shape[1]
    given = seen["prompt_ids"][0]
    logits = np.concatenate(seen["talker_logits"])
    suppressed = generation["suppress_tokens"]
    allowed = logits.copy()
    allowed[:, suppressed] = -np.inf
    prompt = seen["prompt_embeddings"][0]
    arrays: dict[str, Array] = {
        "text_ids": _ids(given["input_ids"]),
        "clip_text_ids": _ids(given.get("ref_ids")),
        "instruction_ids": _ids(given.get("instruct_ids")),
        "talker_tokens": tokens.astype(np.int16),
        "talker_margins": _margins(allowed),
        "predictor_margins": _margins(np.concatenate(seen["predictor_logits"])).reshape(-1, groups - 1),
        "codes": codes.astype(np.int16),
    }
    if not case.sampled:
        arrays |= {"prompt_embeddings": prompt, "talker_logits": logits[:LOGITS_STEPS]}
    if "x_vector" in seen:
        arrays["x_vector"] = seen["x_vector"][0].reshape(-1)
    if case.in_context:
        arrays["clip_codes"] = seen["clip_codes"][0].astype(np.int16)
    facts = {
        "case": asdict(case),
        "prompt_rows": len(prompt),
        "trailing_text_rows": len(seen["trailing_text"][0]),
        "prompt_embeddings_sha256": _sha256(prompt.tobytes()),
        "frames": len(codes),
        # Of a greedy case: where the penalty on repetition took another than the best of what is allowed.
        "steps_decided_by_penalty": int((allowed.argmax(-1) != tokens).sum()),
        "ended_by": "end of speech" if ended else "length",
        "sample_rate_hz": rate_hz,
        "samples": len(waveform),
        "duration_s": len(waveform) / rate_hz,
        "waveform_sha256": _sha256(waveform.tobytes()),
        "generation": {k: v for k, v in generation.items() if k != "suppress_tokens"}
        | {"suppressed": [min(suppressed), max(suppressed), len(suppressed)]},
    }
    return arrays, facts, waveform


def _speak(observed: ObservedModel, case: Case) -> tuple[Array, int]:
    settings: dict[str, Any] = {"max_new_tokens": case.max_new_tokens}
    if not case.sampled:
        settings |= {"do_sample": False, "subtalker_dosample": False}
    if case.speaker:
        waveforms, rate_hz = observed.model.generate_custom_voice(
            case.text,
            speaker=case.speaker,
            language=case.language,
            instruct=case.instruction or None,
            **settings,
        )
    else:
        samples, transcript = _clip(case.voice)
        if case.in_context:
            samples = np.concatenate([samples, np.zeros(round(ONSET_SILENCE_S * RATE_HZ), np.float32)])
        waveforms, rate_hz = observed.model.generate_voice_clone(
            case.text,
            language=case.language,
            ref_audio=(samples, RATE_HZ),
            ref_text=transcript if case.in_context else None,
            x_vector_only_mode=not case.in_context,
            **settings,
        )
    return waveforms[0], rate_hz


def _clip(voice: str) -> tuple[Array, str]:
    """Samples, float32 at RATE_HZ, and transcript of a preset voice."""
    entries = yaml.safe_load((VOICES / "voices.yaml").read_text(encoding="utf-8"))
    entry = next(entry for entry in entries if entry["name"] == voice)
    samples, rate_hz = soundfile.read(VOICES / entry["file"], dtype="float32")
    assert rate_hz == RATE_HZ
    return samples, entry["transcript"]


def _constants(observed: ObservedModel) -> dict[str, Any]:
    """Read from the loaded model, not from files: what the reference goes by."""
    model, codec = observed.model.model, observed.model.model.speech_tokenizer
    config, talker = model.config, model.config.talker_config
    return {
        "samples_per_frame": codec.get_decode_upsample_rate(),
        "clip_samples_per_frame": codec.get_encode_downsample_rate(),
        "input_sample_rate_hz": codec.get_input_sample_rate(),
        "output_sample_rate_hz": codec.get_output_sample_rate(),
        "decoder_window_frames": codec.config.decoder_config.sliding_window,
        "code_groups": talker.num_code_groups,
        "codes_per_group": talker.code_predictor_config.vocab_size,
        "talker_rows": talker.vocab_size,
        "hidden": talker.hidden_size,
        "codec_ids": {
            name: getattr(talker, f"codec_{name}_id")
            for name in ("pad", "bos", "eos_token", "think", "nothink", "think_bos", "think_eos")
        },
        "text_ids": {
            name: getattr(config, f"{name}_token_id")
            for name in ("tts_pad", "tts_bos", "tts_eos", "im_start", "im_end", "assistant")
        },
        "language_ids": talker.codec_language_id,
        "speaker_ids": talker.spk_id,
        "speaker_dialects": talker.spk_is_dialect,
        "sampling_defaults": observed.model._merge_generate_kwargs(),
        "rope_theta": talker.rope_theta,
        "rms_norm_eps": talker.rms_norm_eps,
        "mrope_section": talker.rope_scaling["mrope_section"],
    }


def _ids(ids: Any) -> Array:
    tensor = ids[0] if ids is not None and ids[0] is not None else torch.zeros(0)
    return tensor.numpy().reshape(-1).astype(np.int32)


def _margins(logits: Array) -> Array:
    """How far the best is above the second best, [steps]."""
    best = np.partition(logits, -2, axis=-1)[:, -2:]
    return (best[:, 1] - best[:, 0]).astype(np.float32)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main()
