"""The evaluation as a Markdown table, against what the bundled voice sets out to reach."""

from collections.abc import Callable
from typing import Any

Scores = dict[str, Any]

_COLUMNS: dict[str, Callable[[Scores], str]] = {
    "Runs": lambda row: str(row["runs"]),
    "WER % (95 %)": lambda row: _interval(row["wer_percent"], 1),
    "teacher's": lambda row: _interval(row["teacher_wer_percent"], 1),
    "CER %": lambda row: _value(row["cer_percent"], 1),
    "ended %": lambda row: _value(row["ended_percent"], 1),
    "in time %": lambda row: _value(row["ended_in_time_percent"], 1),
    "duration ratio, 5 / 50 / 95 %": lambda row: _slashed(row["duration_ratio"], 2),
    "DNSMOS (95 %)": lambda row: _interval(row["dnsmos"], 2),
    "teacher's DNSMOS": lambda row: _interval(row["teacher_dnsmos"], 2),
    "DistillMOS": lambda row: _interval(row["distillmos"], 2),
    "teacher's DistillMOS": lambda row: _interval(row["teacher_distillmos"], 2),
    "TTFA ms, 50 / 95 %": lambda row: _slashed(row["ttfa_ms"], 0),
    "RTF, 50 / 95 %": lambda row: _slashed(row["rtf"], 2),
}


def markdown(scores: Scores) -> str:
    """The targets, the table by voice, the similarity matrices and the worst runs of score.py's scores."""
    parts = [_targets(scores), _table(scores["groups"])]
    for title, key in (
        ("Preset voices, by clip of the teacher", "presets_apart"),
        ("Clones, by clip", "clones_near"),
    ):
        if scores[key]:
            same = f"Taken for the same speaker by both encoders: {scores[key]['same_speaker_percent']:.1f} %"
            parts += [
                f"### {title}",
                same,
                *(_matrix(name, e) for name, e in scores[key]["encoders"].items()),
            ]
    parts.append("### Most words wrong")
    parts += [f"- `{run['file']}`: {run['reference']} → *{run['heard']}*" for run in scores["worst"]]
    return "\n\n".join(parts) + "\n"


def _targets(scores: Scores) -> str:
    lines = ["| Figure | Wanted | Measured | Met |", "|---|---|---|---|"]
    if presets := scores["groups"].get("all presets"):
        lines += [
            _target("word error rate, presets, %", _first(presets["wer_percent"]), 1, at_most=10),
            _target(
                "runs that end by themselves at 0.7 to 1.4 of the teacher's duration, presets, %",
                presets["ended_in_time_percent"],
                1,
                at_least=95,
            ),
            _target("DNSMOS overall, presets", _first(presets["dnsmos"]), 2, at_least=2.8),
            _target("RTF, median, presets", _first(presets["rtf"]), 2, at_most=0.5),
            _target("TTFA, median, presets, ms", _first(presets["ttfa_ms"]), 0, at_most=300),
        ]
    if apart := scores["presets_apart"]:
        for name, encoder in apart["encoders"].items():
            told = [
                not row["nearest_other"] or row["own"] > row["nearest_other"]
                for row in encoder["voices"].values()
            ]
            percent = 100 * sum(told) / len(told)
            lines.append(_target(f"preset voices nearest to their own, {name}, %", percent, 0, at_least=100))
    if clones := scores["clones_near"]:
        for name, encoder in clones["encoders"].items():
            right = encoder["pairs_right_percent"]
            lines.append(
                _target(f"clones nearer to their own clip, {name}, % of pairs", right, 1, at_least=80)
            )
    joints = scores["joints"]
    lines.append(_target(f"clicks at {joints['joints']} joints of chunks", joints["clicks"], 0, at_most=0))
    return "\n".join(lines)


def _target(
    figure: str, value: float | None, digits: int, at_most: float | None = None, at_least: float | None = None
) -> str:
    if value is None:
        met = "-"
    else:
        met = "yes" if (value <= at_most if at_most is not None else value >= (at_least or 0)) else "**no**"
    wanted = f"at least {at_least}" if at_most is None else f"at most {at_most}"
    return f"| {figure} | {wanted} | {_value(value, digits)} | {met} |"


def _table(groups: Scores) -> str:
    lines = [
        "| " + " | ".join(["Voice", *_COLUMNS]) + " |",
        "|---" * (len(_COLUMNS) + 1) + "|",
        *(
            "| " + " | ".join([name, *(show(row) for show in _COLUMNS.values())]) + " |"
            for name, row in groups.items()
        ),
    ]
    return "\n".join(lines)


def _matrix(encoder: str, found: Scores) -> str:
    names = list(next(iter(found["voices"].values()))["similarity"])
    lines = [f"| {encoder} | " + " | ".join([*names, "pairs right"]) + " |", "|---" * (len(names) + 2) + "|"]
    for voice, row in found["voices"].items():
        cells = [
            f"**{value:.2f}**" if name == voice else f"{value:.2f}"
            for name, value in row["similarity"].items()
        ]
        lines.append("| " + " | ".join([voice, *cells, f"{_value(row['pairs_right_percent'], 1)} %"]) + " |")
    return "\n".join(lines)


def _first(values: list[float] | None) -> float | None:
    return values[0] if values else None


def _value(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(values: list[float] | None, digits: int) -> str:
    if values is None:
        return "-"
    return f"{values[0]:.{digits}f} ({values[1]:.{digits}f} to {values[2]:.{digits}f})"


def _slashed(values: list[float] | None, digits: int) -> str:
    return "-" if values is None else " / ".join(f"{value:.{digits}f}" for value in values)
