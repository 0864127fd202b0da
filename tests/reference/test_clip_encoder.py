"""Reference clips are encoded to the reference package's codes."""

from typing import Any

import numpy as np
import pytest
import torch

from backend.checkpoint import BUNDLED_DIR
from tests.reference.captures import (
    BUNDLED,
    FOLDER,
    VOICES,
    capture,
    check_checkpoint,
    manifest,
    same_arithmetic,
)

GROUPS, SAMPLES_PER_FRAME = 16, 1920


@pytest.fixture(scope="module")
def encoder() -> Any:
    pytest.importorskip("vllm_omni")
    from tests.codec import load_clip_encoder

    check_checkpoint(BUNDLED, BUNDLED_DIR)
    return load_clip_encoder(BUNDLED_DIR)


def assert_codes(codes: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    assert tuple(codes.shape) == expected.shape
    equal = (codes.numpy() == expected).mean()
    # Another processor may tip a residual that lies halfway between two codes, and those after it.
    assert equal == 1.0 if same_arithmetic(BUNDLED) else equal > 0.99


@pytest.mark.parametrize("case", ["in_context", "in_context_sampled"])
def test_a_clip_s_codes_are_the_reference_s(encoder: Any, case: str) -> None:
    made = capture(BUNDLED, case)
    (codes,) = encoder.codes([made.encoded_clip().samples], GROUPS, SAMPLES_PER_FRAME)
    assert_codes(codes, made.arrays["clip_codes"])


def test_attention_sees_the_whole_of_a_clip_over_ten_seconds(encoder: Any) -> None:
    """transformers 5 keeps to the window in the file, 250 steps; the reference's transformers does not."""
    import soundfile

    long = manifest(BUNDLED)["long_clip"]
    clip = np.concatenate([soundfile.read(VOICES[n].audio_path, dtype="float32")[0] for n in long["voices"]])
    assert len(clip) == long["samples"] > 10 * 24_000
    with np.load(FOLDER / BUNDLED / "long_clip.npz") as kept:
        expected = kept["codes"]
    (codes,) = encoder.codes([clip], GROUPS, SAMPLES_PER_FRAME)
    assert_codes(codes, expected)


def test_the_encoder_stays_in_the_precision_it_was_made_in(encoder: Any) -> None:
    """Upstream asks for bfloat16 once the weights are loaded, in which a quarter of the codes differ."""
    assert {tensor.dtype for tensor in encoder.parameters()} == {torch.float32}


@pytest.mark.parametrize(("samples", "frames"), [(24_000, 13), (24_001, 13), (19_200, 10), (19_199, 10)])
def test_a_partial_last_frame_counts(encoder: Any, samples: int, frames: int) -> None:
    """As in the reference package, by whose lengths these are."""
    noise = 0.01 * np.random.RandomState(0).randn(samples).astype(np.float32)
    (codes,) = encoder.codes([noise], GROUPS, SAMPLES_PER_FRAME)
    assert tuple(codes.shape) == (frames, GROUPS)


def test_a_clip_s_codes_do_not_depend_on_what_is_encoded_beside_it(encoder: Any) -> None:
    clips = [capture(BUNDLED, case).clip().samples for case in ("in_context", "in_context_sampled")]
    together = encoder.codes(clips, GROUPS, SAMPLES_PER_FRAME)
    for clip, codes in zip(clips, together, strict=True):
        (alone,) = encoder.codes([clip], GROUPS, SAMPLES_PER_FRAME)
        assert torch.equal(codes, alone)
