import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from backend.voices import VOICES_FOLDER
from scripts.evaluate.clicks import Joints, measure, summarise

RATE_HZ = 24000
FRAME_SAMPLES = 1920

Samples = NDArray[np.float64]


@pytest.fixture(scope="module")
def speech() -> list[Samples]:
    """The bundled clips recorded at 24 kHz: what a good decoder gives out."""
    return [soundfile.read(VOICES_FOLDER / f"{name}.flac")[0] for name in ("emma", "michael", "clara")]


def frames(samples: Samples) -> list[int]:
    """Chunks of a frame each, so that there are many joints."""
    whole, rest = divmod(len(samples), FRAME_SAMPLES)
    return [FRAME_SAMPLES] * whole + [rest] * bool(rest)


def clicking(samples: Samples, jump: float) -> Joints:
    """The clip with `jump` added at the start of every frame, dying away within it."""
    ramp = np.resize(np.linspace(jump, 0, FRAME_SAMPLES), len(samples))
    ramp[:FRAME_SAMPLES] = 0
    return measure(samples + ramp, RATE_HZ, frames(samples))


def test_clean_speech_has_no_clicks_wherever_it_is_cut(speech: list[Samples]) -> None:
    report = summarise(measure(samples, RATE_HZ, frames(samples)) for samples in speech)
    assert report["joints"] > 200
    assert report["clicks"] == 0
    assert report["above_99th_percentile_percent"] < 4
    assert report["median_ratio_at_joints"] == pytest.approx(report["median_ratio_inside"], rel=0.2)


@pytest.mark.parametrize(("jump", "least_found"), [(0.02, 0.1), (0.1, 0.5)])
def test_jumps_at_joints_are_clicks(speech: list[Samples], jump: float, least_found: float) -> None:
    report = summarise(clicking(samples, jump) for samples in speech)
    assert report["clicks"] > least_found * report["joints"]
    assert report["above_99th_percentile_percent"] > 100 * least_found


def test_ten_samples_lost_at_every_joint_are_noticed(speech: list[Samples]) -> None:
    measured = []
    for samples in speech:
        pieces = [
            samples[start : start + FRAME_SAMPLES - 10] for start in range(0, len(samples), FRAME_SAMPLES)
        ]
        measured.append(measure(np.concatenate(pieces), RATE_HZ, [len(piece) for piece in pieces]))
    assert summarise(measured)["above_99th_percentile_percent"] > 15


def test_a_click_inside_a_chunk_is_not_a_joint_s() -> None:
    time_s = np.arange(4 * FRAME_SAMPLES) / RATE_HZ
    samples = 0.3 * np.sin(2 * np.pi * 150 * time_s)
    samples[FRAME_SAMPLES // 2] += 0.2
    inside = measure(samples, RATE_HZ, [FRAME_SAMPLES] * 4)
    assert inside.at_joints.max() < 2 < 50 < inside.inside.max()
    at_joint = measure(samples, RATE_HZ, [FRAME_SAMPLES // 2, 3 * FRAME_SAMPLES])
    assert at_joint.at_joints.max() > 50


def test_a_click_too_soft_to_hear_is_none() -> None:
    samples = np.zeros(4 * FRAME_SAMPLES)
    samples[FRAME_SAMPLES:] = 2e-4
    assert summarise([measure(samples, RATE_HZ, [FRAME_SAMPLES] * 4)])["clicks"] == 0


def test_one_chunk_has_no_joints() -> None:
    assert summarise([measure(np.zeros(FRAME_SAMPLES), RATE_HZ, [FRAME_SAMPLES])])["joints"] == 0
