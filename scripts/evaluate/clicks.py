"""Whether the places where streamed chunks meet can be heard.

    python scripts/evaluate/clicks.py FOLDER [LISTING.jsonl] [--out clicks.json]

Rows as for wer.py, with the lengths of the chunks: {"file": "a.wav", "chunk_samples": [7680, 7680, ...]}.
Needs only NumPy and soundfile.

A click is a jump between two samples. It stands out in the fourth difference, which raises frequencies by
24 dB an octave and so all but silences voiced speech. At a joint its peak is compared with its RMS around,
and that ratio with the ratios everywhere inside the chunks, where speech has transients of its own.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.evaluate.clips import read_rows

ORDER = 4
PEAK_MS, AROUND_MS = 0.25, 10.0
# Where the difference is weaker than this (-66 dB of full scale) a click is too soft to matter.
FLOOR = 5e-4
# Above this, and above all but 0.1 % of the places inside the chunks, a joint clicks.
CLICK_RATIO = 8.0


@dataclass(frozen=True)
class Joints:
    """The ratios at a clip's joints and, every millisecond, inside its chunks; each [places]."""

    at_joints: NDArray[np.float64]
    inside: NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("listing", type=Path, nargs="?", help="JSONL; default FOLDER/clips.jsonl")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()

    rows = read_rows(options.listing or options.folder / "clips.jsonl")
    measured = {row["file"]: measure_file(options.folder / row["file"], row["chunk_samples"]) for row in rows}
    report = summarise(measured.values())
    print(describe(report))
    for file, joints in measured.items():
        if clicks := int((joints.at_joints > report["threshold"]).sum()):
            print(f"  {file}: {clicks} of {len(joints.at_joints)} joints")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def measure_file(path: Path, chunk_samples: Sequence[int]) -> Joints:
    samples, rate_hz = soundfile.read(path, dtype="float64")
    return measure(samples, rate_hz, chunk_samples)


def measure(samples: NDArray[np.float64], rate_hz: int, chunk_samples: Sequence[int]) -> Joints:
    """Of mono `samples` in [-1, 1]; `chunk_samples` are the chunks' lengths, in order."""
    ratios = _ratios(samples, rate_hz)
    joints = np.cumsum(chunk_samples)[:-1]
    joints = joints[(joints > 0) & (joints < len(samples))]
    places = np.arange(0, len(samples), round(1e-3 * rate_hz))
    # As far from a joint as it takes for its jump to be in neither the peak nor the RMS.
    apart = round((PEAK_MS + AROUND_MS) * 1e-3 * rate_hz)
    near = np.abs(places[:, None] - joints[None]).min(axis=1, initial=len(samples)) <= apart
    return Joints(ratios[joints], ratios[places[~near]])


def summarise(measured: Iterable[Joints]) -> dict[str, Any]:
    """Clicks at all joints, and how many joints pass the 99th percentile of the places inside: 1 % should."""
    listed = list(measured)
    joints = np.concatenate([one.at_joints for one in listed])
    inside = np.concatenate([one.inside for one in listed])
    if not len(joints) or not len(inside):
        return {"joints": len(joints), "clicks": 0, "threshold": CLICK_RATIO}
    p99, p999 = np.percentile(inside, [99, 99.9])
    threshold = max(float(p999), CLICK_RATIO)
    return {
        "joints": len(joints),
        "clicks": int((joints > threshold).sum()),
        "threshold": round(threshold, 2),
        "above_99th_percentile_percent": round(100 * float((joints > p99).mean()), 2),
        "median_ratio_at_joints": round(float(np.median(joints)), 2),
        "median_ratio_inside": round(float(np.median(inside)), 2),
        "largest_ratio_at_joints": round(float(joints.max()), 2),
        "largest_ratio_inside": round(float(inside.max()), 2),
    }


def describe(report: dict[str, Any]) -> str:
    if "largest_ratio_inside" not in report:
        return f"{report['joints']} joints: nothing to measure."
    return (
        f"{report['joints']} joints, {report['clicks']} clicks; "
        f"{report['above_99th_percentile_percent']:.1f} % above the 99th percentile inside chunks; "
        f"ratio at joints median {report['median_ratio_at_joints']}, "
        f"largest {report['largest_ratio_at_joints']}, "
        f"inside {report['median_ratio_inside']} and {report['largest_ratio_inside']}"
    )


def _ratios(samples: NDArray[np.float64], rate_hz: int) -> NDArray[np.float64]:
    """[samples]: the difference's peak within PEAK_MS over its RMS within AROUND_MS but outside that."""
    peak, around = round(PEAK_MS * 1e-3 * rate_hz), round(AROUND_MS * 1e-3 * rate_hz)
    # Element n takes in x[n - ORDER] to x[n]: a jump before x[n] shows from n to n + ORDER - 1.
    steps = np.diff(samples, ORDER, prepend=samples[:1].repeat(ORDER))
    padded = np.pad(np.abs(steps), peak)
    peaks = sliding_window_view(padded, 2 * peak + 1).max(axis=1)
    outer, inner = _window_sum(steps**2, around), _window_sum(steps**2, peak)
    counts = _window_sum(np.ones_like(steps), around) - _window_sum(np.ones_like(steps), peak)
    rms = np.sqrt(np.maximum(outer - inner, 0) / np.maximum(counts, 1))
    return peaks / np.maximum(rms, FLOOR)


def _window_sum(values: NDArray[np.float64], reach: int) -> NDArray[np.float64]:
    """Sum over [n - reach, n + reach], clipped to the array, for each n."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    return total[np.minimum(places + reach + 1, len(values))] - total[np.maximum(places - reach, 0)]


if __name__ == "__main__":
    main()
