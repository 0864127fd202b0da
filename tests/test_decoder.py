"""Streamed decoding equals decoding at once, also where a layer's window is short of the decoder's reach."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.checkpoint import BUNDLED_DIR
from tests.codec import load_decoder

CODEC = BUNDLED_DIR / "speech_tokenizer"
SAMPLES_PER_FRAME = 1920
CHUNKS_FRAMES = (4, 5, 6, 8, 10, 14, 19, 25, 25)


@pytest.fixture(scope="module")
def upstream_decoder() -> Any:
    """vLLM-Omni's decoder with the bundled weights, in float32."""
    pytest.importorskip("vllm_omni")
    return load_decoder(BUNDLED_DIR)


@pytest.fixture
def decoder(upstream_decoder: Any) -> Iterator[Any]:
    config = upstream_decoder.config
    yield upstream_decoder
    upstream_decoder.config = config


def codes() -> Tensor:
    """Random frames [1, 16, frames], in the 8 groups that the bundled codec uses."""
    generator = torch.Generator().manual_seed(5)
    made = torch.zeros(1, 16, sum(CHUNKS_FRAMES), dtype=torch.long)
    made[:, :8] = torch.randint(1, 2048, made[:, :8].shape, generator=generator)
    return made


@torch.inference_mode()
def largest_difference(decoder: Any) -> tuple[float, float]:
    """Of streamed and whole decoding, and the whole one's standard deviation."""
    whole = decoder(codes())[0, 0]
    state: dict[str, Any] = {"prefix_frames": 0}
    parts = [
        decoder.chunked_decode(part, caches=state)[0, 0] for part in codes().split(CHUNKS_FRAMES, dim=-1)
    ]
    assert [len(part) // SAMPLES_PER_FRAME for part in parts] == list(CHUNKS_FRAMES)
    return float((torch.cat(parts) - whole).abs().max()), float(whole.std())


def test_streamed_speech_of_the_bundled_decoder_equals_speech_decoded_at_once(decoder: Any) -> None:
    from backend.decoder import keep_whole_reach

    forgetful, loudness = largest_difference(decoder)
    assert forgetful > 0.01 * loudness  # as upstream has it: what this is for
    keep_whole_reach(decoder)
    assert decoder.pre_transformer.config.sliding_window == 16
    whole, _ = largest_difference(decoder)
    assert whole < 1e-4 * loudness


@pytest.mark.parametrize(
    ("window_frames", "layers", "expected"),
    [(72, 8, 72), (72, 2, 72), (16, 4, 72), (16, 2, 42), (100, 2, 100)],
)
def test_the_state_holds_the_reach_as_far_as_upstream_keeps_one(
    window_frames: int, layers: int, expected: int
) -> None:
    pytest.importorskip("vllm_omni")
    from backend.decoder import state_frames

    assert state_frames(window_frames, layers) == expected


def test_the_bundled_codec_has_the_window_this_is_about() -> None:
    config = json.loads((CODEC / "config.json").read_text())["decoder_config"]
    assert (config["sliding_window"], config["num_hidden_layers"]) == (16, 4)
