import numpy as np
import pytest

from scripts.evaluate.speakers import verdict


def unit(*rows: tuple[float, float]) -> np.ndarray:
    vectors = np.array(rows, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


REFERENCES = unit((1, 0), (0.9, 0.1), (0, 1))
KNOWN = ["anna", "anna", "bert"]


def test_a_clip_is_right_where_its_own_voice_is_the_nearer_of_each_pair() -> None:
    made = unit((1, 0.1), (0.2, 1), (0.9, 0.3))
    found, own = verdict(made, ["anna", "anna", "bert"], REFERENCES, KNOWN)
    assert found["pairs_right_percent"] == pytest.approx(33.3)
    assert found["voices"]["anna"]["pairs_right_percent"] == 50
    assert found["voices"]["bert"]["pairs_right_percent"] == 0
    assert own[0] > 0.98
    assert own[2] == pytest.approx(0.3 / np.hypot(0.9, 0.3), abs=1e-5)


def test_a_voice_is_compared_with_the_mean_of_its_references() -> None:
    found, _ = verdict(unit((1, 0)), ["anna"], REFERENCES, KNOWN)
    row = found["voices"]["anna"]
    assert (
        row["own"] == row["similarity"]["anna"] == pytest.approx((1 + 0.9 / np.hypot(0.9, 0.1)) / 2, abs=1e-3)
    )
    assert row["nearest_other"] == row["similarity"]["bert"] == 0


def test_with_one_voice_there_is_no_pair() -> None:
    found, _ = verdict(unit((1, 0)), ["anna"], REFERENCES[:2], KNOWN[:2])
    assert found["pairs_right_percent"] is None
