"""What a run has made so far, and the report it ends with."""

import time

from backend.contract import AudioChunk, FinishReason, FrameStats, Mode, Pcm, RunReport
from backend.families.family import ModelInfo


class Progress:
    """Counts one run's chunks on the monotonic clock, from its arrival and from when it was taken up."""

    def __init__(self) -> None:
        self._arrived = time.monotonic()
        self._taken: float | None = None
        self._ttfa_s: float | None = None
        self._chunks = 0
        self._samples = 0
        self._decoded_samples = 0
        self.frames = 0

    def taken_up(self) -> None:
        """The wait in the queue is over."""
        self._taken = time.monotonic()

    def next_chunk(self, pcm: Pcm, sample_rate_hz: int) -> AudioChunk:
        """Notes the audio that has just left the engine, [samples], as the run's next chunk."""
        elapsed_s = time.monotonic() - (self._taken or self._arrived)
        if self._ttfa_s is None:
            self._ttfa_s = elapsed_s
        chunk = AudioChunk(pcm, sample_rate_hz, self._chunks, elapsed_s)
        self._chunks += 1
        self._samples += len(pcm)
        return chunk

    def decoded(self, pcm: Pcm, model: ModelInfo) -> None:
        """Notes what the decoder gave, [samples]: `frames` counts whole codec frames made."""
        self._decoded_samples += len(pcm)
        self.frames = self._decoded_samples // model.samples_per_frame

    def report(
        self,
        request_id: str,
        seed: int,
        reason: FinishReason,
        model: ModelInfo,
        frame_stats: FrameStats | None = None,
    ) -> RunReport:
        now = time.monotonic()
        taken = self._taken or now
        return RunReport(
            request_id=request_id,
            seed=seed,
            mode="" if model.family.foreign_predictor else _mode(frame_stats),
            finish_reason=reason,
            chunks=self._chunks,
            frames=self.frames,
            audio_s=self._samples / model.sample_rate_hz,
            queue_s=taken - self._arrived,
            ttfa_s=self._ttfa_s,
            total_s=now - taken,
            notes=_notes(frame_stats),
            frame_stats=frame_stats,
        )


def _mode(stats: FrameStats | None) -> str:
    """As most of the frames were made."""
    return Mode.GRAPH if stats is not None and 2 * stats.graph_frames > stats.frames else Mode.EAGER


def _notes(stats: FrameStats | None) -> tuple[str, ...]:
    if stats is None or not stats.fallbacks:
        return ()
    return (f"{stats.fallbacks} of {stats.frames} frames ran eager: {stats.fallback_reason}.",)


def summary(report: RunReport) -> str:
    """One line for the log."""
    ttfa = "no audio" if report.ttfa_s is None else f"TTFA {report.ttfa_s * 1e3:.0f} ms"
    rtf = "" if report.rtf is None else f", RTF {report.rtf:.2f}"
    return (
        f"{report.request_id}: {report.finish_reason.value}, {ttfa}{rtf}, {report.audio_s:.2f} s of audio "
        f"in {report.chunks} chunks, queued {report.queue_s:.2f} s"
    )
