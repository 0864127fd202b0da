"""What the page is told about a run."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from backend.contract import FinishReason, RunReport

_LENGTH_NOTE = "The speech was cut off at the length limit; raise Max length under Advanced for more."


class RunState(StrEnum):
    QUEUED = "queued"
    GENERATING = "generating"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class RunView:
    """What the server knows of a run; durations are seconds, RTF is generation time / audio time."""

    run_id: str
    state: RunState
    message: str = ""
    ahead: int = 0
    chunks: int = 0
    audio_s: float = 0.0
    ttfa_s: float | None = None
    total_s: float | None = None
    queue_s: float = 0.0
    rtf: float | None = None
    rtf_text: str = ""
    mode: str = ""
    seed: int | None = None
    finish_reason: str = ""

    def value(self) -> dict[str, Any]:
        return asdict(self)


def finished_view(run_id: str, report: RunReport, *, stopped: bool = False) -> RunView:
    """The view of a run that has ended without an error."""
    message = " ".join(report.notes)
    if report.finish_reason is FinishReason.LENGTH:
        message = f"{_LENGTH_NOTE} {message}".strip()
    # A stopped run's RTF compares a cut-off clip with time spent on audio that nobody got.
    rtf = None if stopped else report.rtf
    return RunView(
        run_id=run_id,
        state=RunState.STOPPED if stopped else RunState.FINISHED,
        message=message,
        chunks=report.chunks,
        audio_s=report.audio_s,
        ttfa_s=report.ttfa_s,
        total_s=report.total_s,
        queue_s=report.queue_s,
        rtf=rtf,
        rtf_text=rtf_text(rtf),
        mode=report.mode,
        seed=report.seed,
        finish_reason=str(report.finish_reason),
    )


def rtf_text(rtf: float | None) -> str:
    """For example "0.16 (6.2x real time)"."""
    return f"{rtf:.2f} ({1 / rtf:.1f}x real time)" if rtf else ""
