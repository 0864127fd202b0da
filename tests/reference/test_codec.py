"""The codec's decoder gives the reference package's waveform for the same codes, at once and in chunks."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backend.checkpoint import BUNDLED_DIR, Variant
from tests.codec import decode, load_decoder, one_thread, waveform
from tests.reference.captures import (
    BUNDLED,
    INT16_MAX,
    SAMPLES_PER_FRAME,
    TINY,
    WAVEFORM_TOLERANCE,
    capture,
    check_checkpoint,
    manifest,
    same_arithmetic,
)

RAMP_FRAMES = (4, 5, 6, 8, 10, 14, 19, 25, 25, 25, 25)
# What a click at a joint is made of: 5 ms.
JOINT_SAMPLES = 120


@pytest.fixture(scope="module", params=[BUNDLED, TINY])
def codec(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[Variant], Path]) -> Iterator[Any]:
    """(name, decoder as the engine has it), on one thread as the captures were made."""
    pytest.importorskip("vllm_omni")
    from backend.decoder import keep_whole_reach

    folder = BUNDLED_DIR if request.param == BUNDLED else tiny_checkpoint("custom_voice")
    check_checkpoint(request.param, folder)
    decoder = load_decoder(folder)
    keep_whole_reach(decoder)
    with one_thread():
        yield request.param, decoder


@torch.inference_mode()
def stream(decoder: Any, codes: NDArray[np.int64], chunks: tuple[int, ...]) -> NDArray[np.float32]:
    state: dict[str, Any] = {"prefix_frames": 0}
    parts = torch.from_numpy(codes.T.copy())[None].split(list(chunks), dim=-1)
    joined = torch.cat([decoder.chunked_decode(part, caches=state)[0, 0] for part in parts])
    samples: NDArray[np.float32] = joined.clamp(-1, 1).numpy()
    return samples


def test_the_same_codes_give_the_reference_s_waveform(codec: tuple[str, Any]) -> None:
    name, decoder = codec
    for case in manifest(name)["cases"]:
        made = capture(name, case)
        samples = waveform(decoder, made)
        assert len(samples) == made.facts["samples"]
        if same_arithmetic(name):
            assert hashlib.sha256(samples.tobytes()).hexdigest() == made.facts["waveform_sha256"], case
        reference = made.pcm.astype(np.float32) / INT16_MAX
        difference = np.abs(samples[: len(reference)] - reference).max(initial=0.0)
        rounding = 0.5 / INT16_MAX
        assert difference <= WAVEFORM_TOLERANCE * np.abs(reference).max(initial=0.0) + rounding, case


def test_a_waveform_lasts_its_frames_and_not_a_sample_more(codec: tuple[str, Any]) -> None:
    name, decoder = codec
    hop = manifest(name)["constants"]["samples_per_frame"]
    for frames in (1, 2, 73):
        codes = np.zeros((frames, 16), np.int64)
        assert len(decode(decoder, codes)) == frames * hop == frames * SAMPLES_PER_FRAME


def test_every_code_that_is_in_use_is_heard(codec: tuple[str, Any]) -> None:
    """So that equal waveforms are a proof of equal codes, frame by frame and group by group."""
    name, decoder = codec
    made = capture(name, "x_vector" if name == BUNDLED else "named_speaker")
    plain = decode(decoder, made.codes)
    tolerance = WAVEFORM_TOLERANCE * np.abs(plain).max()
    in_use = [group for group in range(16) if len(set(made.codes[:, group].tolist())) > 1]
    assert in_use == list(range(len(in_use)))
    assert len(in_use) >= 8
    for group in in_use:
        frame = 2 + group
        changed = made.codes.copy()
        changed[frame, group] = made.codes[frame + 1, group] or 1
        if changed[frame, group] == made.codes[frame, group]:
            changed[frame, group] = made.codes[:, group].max() - 1
        heard = np.abs(decode(decoder, changed) - plain).reshape(-1, SAMPLES_PER_FRAME).max(axis=1)
        assert heard[:frame].max() == 0.0
        assert heard[frame : frame + 2].max() > 5 * tolerance, group


def random_codes(name: str, frames: int) -> NDArray[np.int64]:
    made = capture(name, "x_vector" if name == BUNDLED else "named_speaker").codes
    rows = np.random.RandomState(3).randint(len(made), size=frames)
    return made[rows]


def test_a_frame_is_heard_for_as_long_as_the_decoder_looks_back(codec: tuple[str, Any]) -> None:
    """Its reach, which a chunk needs as left context. The bundled codec was made for 72 frames."""
    name, decoder = codec
    codes = random_codes(name, 160)
    changed = codes.copy()
    changed[0] = codes[1]
    plain = decode(decoder, codes)
    heard = np.abs(decode(decoder, changed) - plain).reshape(-1, SAMPLES_PER_FRAME).max(axis=1)
    assert heard[0] > 0.01 * np.abs(plain).max()
    reach = int(np.flatnonzero(heard)[-1])
    config = decoder.pre_transformer.config
    assert reach <= config.num_hidden_layers * (config.sliding_window - 1) + 12
    if name == BUNDLED:
        assert reach <= 72


def test_streamed_speech_is_no_further_off_at_joints_than_within_chunks(codec: tuple[str, Any]) -> None:
    name, decoder = codec
    codes = random_codes(name, sum(RAMP_FRAMES))
    whole, streamed = decode(decoder, codes), stream(decoder, codes, RAMP_FRAMES)
    assert len(streamed) == len(whole)
    error = np.abs(streamed - whole)
    joints = np.cumsum(RAMP_FRAMES[:-1]) * SAMPLES_PER_FRAME
    at_joints = np.zeros(len(error), bool)
    for joint in joints:
        at_joints[joint - JOINT_SAMPLES : joint + JOINT_SAMPLES] = True
    peak = np.abs(whole).max()
    assert error[at_joints].max() <= error[~at_joints].max()
    assert rms(error[at_joints]) <= 1.25 * rms(error[~at_joints])
    # With 72 frames kept the bundled decoder forgets nothing; others round off what lies further back.
    assert error.max() <= (1e-5 if name == BUNDLED else 0.1) * peak


def rms(values: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.square(values).mean()))
