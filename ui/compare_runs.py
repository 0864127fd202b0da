"""One text spoken again and again, by CUDA graph and eager in turn, and what that shows."""

import asyncio
import statistics
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from backend.contract import (
    Capabilities,
    EngineUnavailable,
    FinishReason,
    InvalidRequest,
    Mode,
    RunReport,
    SpeechEngine,
    SpeechRequest,
)
from ui.heartbeat import HEARTBEAT_S, chunks_or_heartbeats

MAX_REPEATS = 20
# Where nobody gave a seed: the same for every run, or they would not say the same.
SEED = 1


@dataclass(frozen=True)
class Figure:
    """One measured quantity, in `unit`; smaller is better."""

    name: str
    unit: str
    of: Callable[[RunReport], float | None]


def _frame_ms(name: str) -> Callable[[RunReport], float | None]:
    return lambda report: getattr(report.frame_stats, name) if report.frame_stats is not None else None


FIGURES = (
    Figure("TTFA", "ms", lambda report: None if report.ttfa_s is None else 1e3 * report.ttfa_s),
    Figure("RTF", "", lambda report: report.rtf),
    Figure("Predictor", "ms a frame", _frame_ms("predictor_ms")),
    Figure("Talker", "ms a frame", _frame_ms("talker_ms")),
)


@dataclass(frozen=True)
class Comparison:
    """What has been measured so far: warm runs of the same text, seed and sampling, by mode."""

    request: SpeechRequest
    capabilities: Capabilities
    repeats: int
    reports: dict[Mode, tuple[RunReport, ...]]
    # What goes on now, in words.
    progress: str = ""

    @property
    def done(self) -> bool:
        return all(len(reports) == self.repeats for reports in self.reports.values())

    def rows(self) -> list[dict[str, Any]]:
        """A row for each figure: median, lowest and highest by mode, and eager over graph."""
        return [row for figure in FIGURES if (row := self._row(figure)) is not None]

    def _row(self, figure: Figure) -> dict[str, Any] | None:
        row: dict[str, Any] = {"figure": figure.name, "unit": figure.unit}
        medians = {}
        for mode in Mode:
            values = [v for report in self.reports[mode] if (v := figure.of(report)) is not None]
            if not values:
                return None
            medians[mode] = statistics.median(values)
            row[mode] = {"median": medians[mode], "lowest": min(values), "highest": max(values)}
        row["speed_up"] = medians[Mode.EAGER] / medians[Mode.GRAPH] if medians[Mode.GRAPH] else None
        return row


async def compare(
    engine: SpeechEngine, request: SpeechRequest, repeats: int, stopped: asyncio.Event
) -> AsyncGenerator[Comparison, None]:
    """Yields after every run, and at least every HEARTBEAT_S; ends early once `stopped` is set.

    Both modes are warmed up by a run that is not counted, then take turns, each going first as
    often, so that neither profits from what else the machine does. Raises SpeechError; an engine that
    is busy with others, or a run that was not made by the mode asked for, would compare nothing.
    """
    capabilities = engine.capabilities
    if capabilities is None:
        raise EngineUnavailable("The speech engine is not ready yet; try again in a moment.")
    if capabilities.graph_unavailable:
        raise InvalidRequest(f"There is nothing to compare: {capabilities.graph_unavailable}.")
    if engine.status.running or engine.status.queued:
        raise InvalidRequest("The engine is busy with other requests, which would spoil the comparison.")
    request = replace(request, seed=SEED if request.seed is None else request.seed)
    state = Comparison(request, capabilities, repeats, dict.fromkeys(Mode, ()), "Warming up")
    yield state
    turns = [(mode, False) for mode in Mode]
    for i in range(repeats):
        turns += [(mode, True) for mode in (Mode if i % 2 == 0 else reversed(Mode))]
    for number, (mode, counts) in enumerate(turns):
        if counts:
            state = replace(state, progress=f"Run {number - 1} of {2 * repeats}: {mode}")
            yield state
        run = engine.synthesize(replace(request, mode=mode))
        try:
            async with aclosing(chunks_or_heartbeats(run, stopped, HEARTBEAT_S)) as steps:
                async for chunk in steps:
                    if chunk is None:
                        yield state
        finally:
            await run.aclose()
        if stopped.is_set():
            yield replace(state, progress="Stopped")
            return
        report = run.report
        if report is None or report.finish_reason in (FinishReason.ABORTED, FinishReason.FAILED):
            raise EngineUnavailable("A run did not finish, so there is nothing to compare.")
        if report.mode != mode:
            raise InvalidRequest(f"A run that was to be {mode} was not. {' '.join(report.notes)}".strip())
        if counts:
            state = replace(state, reports={**state.reports, mode: (*state.reports[mode], report)})
            yield state
    yield replace(state, progress="Done")


def spread(value: dict[str, float], unit: str) -> str:
    """For example "41.2 ms (40.1 to 44.0)"."""
    digits = 3 if not unit else 1 if value["median"] >= 10 else 2
    median, lowest, highest = (f"{value[key]:.{digits}f}" for key in ("median", "lowest", "highest"))
    return f"{median}{' ms' if unit else ''} ({lowest} to {highest})"


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as text: figure, graph, eager, speed-up."""
    return [
        [
            f"{row['figure']}{' a frame' if row['unit'].endswith('a frame') else ''}",
            spread(row[Mode.GRAPH], row["unit"]),
            spread(row[Mode.EAGER], row["unit"]),
            "" if row["speed_up"] is None else f"{row['speed_up']:.2f}x",
        ]
        for row in rows
    ]
