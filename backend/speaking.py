"""Runs on vLLM-Omni's two stages: each waits for its turn, is spoken piece by piece, and reported."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np

from backend import prompt
from backend.admission import Admission, Ticket
from backend.contract import NO_GRAPH_ON_CPU, FinishReason, Mode, Pcm, RunReport, SpeechError, SpeechRequest
from backend.families.family import ModelInfo, Tokenize
from backend.frame_stats import FrameStatsReader
from backend.joins import Joiner
from backend.leftovers import remove_leftovers
from backend.omni_output import as_pcm
from backend.predictor_request import PredictorRequest
from backend.progress import Progress, summary
from backend.run import EngineRun
from backend.sampling import sampling_params

logger = logging.getLogger(__name__)

# By then the talker has heard of the abort and writes no more.
LEFTOVERS_AFTER_S = 1.0
# How long running requests get to leave the stages before these are stopped under them.
ABORT_TIMEOUT_S = 2.5
# How far one run moves the running estimate of RTF.
RTF_SMOOTHING = 0.3


class Speaking:
    """Everything but `admission` and the figures belongs to the engine's event loop.

    `explain` tells what to say to the person whose run met an error. `warm` is set once the engine has
    warmed up: only then are runs told to `on_report`.
    """

    def __init__(
        self,
        omni: Any,
        model: ModelInfo,
        tokenize: Tokenize,
        admission: Admission,
        frame_stats: FrameStatsReader,
        explain: Callable[[Exception], Awaitable[SpeechError]],
    ) -> None:
        self._omni = omni
        self._model = model
        self._tokenize = tokenize
        self._frame_stats = frame_stats
        self._explain = explain
        self.admission = admission
        self.warm = False
        self.on_report: Callable[[RunReport], None] = lambda _: None
        self.recent_rtf: float | None = None
        self.graph_unavailable = NO_GRAPH_ON_CPU
        self._failed = False
        self._runs: set[EngineRun] = set()
        # Ids of runs that may have left something in shared memory.
        self._left_behind: set[str] = set()

    @property
    def default_mode(self) -> Mode:
        return Mode.EAGER if self.graph_unavailable else Mode.GRAPH

    @property
    def max_frames(self) -> int:
        return int(self._omni.default_sampling_params_list[0].max_tokens)

    async def serve(self, run: EngineRun, ticket: Ticket) -> None:
        """Makes one run's audio, and always leaves a report and an end marker."""
        progress = Progress()
        reason = FinishReason.FAILED
        failure: SpeechError | None = None
        self._runs.add(run)
        try:
            run.serve_in_this_task()
            await self.admission.wait(ticket)
            progress.taken_up()
            reason = await self._speak(run, progress)
        except asyncio.CancelledError:
            reason = FinishReason.FAILED if self._failed else FinishReason.ABORTED
            raise
        except SpeechError as error:
            failure = error
        except Exception as error:
            logger.exception("Request %s failed.", run.request_id)
            failure = await self._explain(error)
        finally:
            self._runs.discard(run)
            stats = self._frame_stats.of(run.request_id)
            run.report = progress.report(run.request_id, run.seed, reason, self._model, stats)
            self.admission.leave(ticket, run.report.total_s if run.report.frames else None)
            self._learn_rtf(run.report)
            logger.info("%s", summary(run.report))
            if self.warm:
                self.on_report(run.report)
            if reason in (FinishReason.ABORTED, FinishReason.FAILED):
                self._clean_up_later(run.request_id)
            if failure is not None:
                run.push(failure)
            run.push(None)

    def fail(self, error: SpeechError) -> None:
        """Ends all runs, and tells each why."""
        self._failed = True
        for run in tuple(self._runs):
            run.push(error)
        self.end_runs()

    def end_runs(self) -> None:
        for run in tuple(self._runs):
            run.cancel()

    async def runs_gone(self) -> None:
        if tasks := [run.task for run in self._runs if run.task is not None]:
            await asyncio.wait(tasks, timeout=ABORT_TIMEOUT_S)

    def clean_up(self) -> None:
        """Removes what runs have left in shared memory; for when nobody writes there any more."""
        for request_id in tuple(self._left_behind):
            self._clean_up(request_id)

    def _clean_up_later(self, request_id: str) -> None:
        self._left_behind.add(request_id)
        asyncio.get_running_loop().call_later(LEFTOVERS_AFTER_S, self._clean_up, request_id)

    def _clean_up(self, request_id: str) -> None:
        self._left_behind.discard(request_id)
        remove_leftovers(request_id)

    async def _speak(self, run: EngineRun, progress: Progress) -> FinishReason:
        """Speaks the text, piece by piece where it is long, all in this run's one place."""
        request, model, reason = run.request, self._model, FinishReason.STOP
        pieces = prompt.pieces(request)
        joiner = Joiner(model.sample_rate_hz)
        clip: list[Pcm] = []

        def out(pcm: Pcm) -> None:
            if not request.stream:
                clip.append(pcm)
            elif len(pcm):
                run.push(progress.next_chunk(pcm, model.sample_rate_hz))

        for number, text in enumerate(pieces):
            left = None if request.max_frames is None else request.max_frames - progress.frames
            if left is not None and left < prompt.MIN_FRAMES:
                break
            piece = replace(request, text=text, max_frames=left)
            limit_frames = prompt.frame_limit(piece, model, self.max_frames, self._tokenize)
            before = progress.frames
            async for pcm in self._audio(run, piece, number, limit_frames):
                progress.decoded(pcm, model)
                out(pcm if len(pieces) == 1 else joiner.add(pcm))
            out(joiner.end() if number == len(pieces) - 1 else joiner.end_piece())
            # A limit of N tokens gives N - 1 frames: the last token's residual codes are never predicted.
            if progress.frames - before >= limit_frames - 1:
                reason = FinishReason.LENGTH
        if clip and any(map(len, clip)):
            run.push(progress.next_chunk(np.concatenate(clip), model.sample_rate_hz))
        return reason

    async def _audio(
        self, run: EngineRun, piece: SpeechRequest, number: int, limit_frames: int
    ) -> AsyncIterator[Pcm]:
        """One piece's audio as the decoder gives it out, each [samples]."""
        family = self._model.family
        asked = family.build_prompt(piece, self._model, self._tokenize)
        if not family.foreign_predictor:
            # All pieces' frames are counted for the one run.
            wanted = PredictorRequest.of(piece, run.request_id, run.seed, self.default_mode)
            wanted.write(asked["additional_information"])
        defaults = self._omni.default_sampling_params_list
        outputs = self._omni.generate(
            asked,
            request_id=f"{run.request_id}-{number}",
            sampling_params_list=sampling_params(
                defaults, piece, run.seed, limit_frames, family.extra_args(run.seed)
            ),
            output_modalities=["audio"],
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                pcm = as_pcm(output)
                if pcm is not None:
                    yield pcm

    def _learn_rtf(self, report: RunReport) -> None:
        if report.rtf is None or report.finish_reason in (FinishReason.ABORTED, FinishReason.FAILED):
            return
        # Warm-up includes lazy initialisation: its last run alone counts, as the first estimate.
        if self.recent_rtf is None or not self.warm:
            self.recent_rtf = report.rtf
        else:
            self.recent_rtf += RTF_SMOOTHING * (report.rtf - self.recent_rtf)
