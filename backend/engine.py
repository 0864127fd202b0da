"""The speech engine: vLLM-Omni's `AsyncOmni` in this process, behind the `SpeechEngine` contract.

One thread owns everything of vLLM-Omni: it imports it, starts its stages, and runs
the event loop on which every request is made. Callers on other loops and threads
reach it through `EngineRun`.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend import prompt, warm_up
from backend.admission import Admission
from backend.contract import (
    Capabilities,
    EngineStatus,
    EngineUnavailable,
    Phase,
    RunReport,
    SpeechError,
    SpeechRequest,
)
from backend.deployment import Deployment, plan, vllm_is_for_cpu
from backend.families.family import Tokenize
from backend.frame_stats import VARIABLE as FRAME_STATS_VARIABLE
from backend.frame_stats import FrameStatsReader
from backend.plugins import make_discoverable
from backend.run import EngineRun, died
from backend.settings import Settings
from backend.speaking import Speaking
from backend.stage_processes import (
    end_stage_processes,
    start_fork_server,
    stop_fork_server,
    use_fork_server,
)
from backend.stage_schema import DECODER_STAGE, TALKER_STAGE

logger = logging.getLogger(__name__)

STAGE_START_TIMEOUT_S = 600
# The longest a warm-up sentence may take, compilation included.
WARM_UP_TIMEOUT_S = 300
HEALTH_CHECK_INTERVAL_S = 0.5
SHUTDOWN_TIMEOUT_S = 9.0
# Nothing interrupts an import or the start of the stages: those are left to end with the process.
LOADING_END_TIMEOUT_S = 2.0
STAGE_END_TIMEOUT_S = 5.5
# The same for one that is still loading, and may not listen.
LOADING_STAGE_END_TIMEOUT_S = 1.5


class OmniSpeechEngine:
    """Implements `SpeechEngine` on vLLM-Omni, on a GPU or, by our platform plugin, on the CPU."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.on_report: Callable[[RunReport], None] = lambda _: None
        self._phase = Phase.LOADING
        self._detail = "starting"
        self._prepared = False
        self._capabilities: Capabilities | None = None
        self._thread = threading.Thread(target=self._thread_main, name="speech-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._omni: Any = None
        self._deployment: Deployment | None = None
        # Once the stages are up.
        self._speaking: Speaking | None = None

    @property
    def status(self) -> EngineStatus:
        speaking = self._speaking
        if speaking is None:
            return EngineStatus(self._phase, self._detail, 0, 0)
        running = max(speaking.admission.running, self.requests_in_stages())
        queued = speaking.admission.queued
        return EngineStatus(self._phase, self._detail, running, queued, speaking.recent_rtf)

    def requests_in_stages(self) -> int:
        """vLLM-Omni's own count of requests its stages hold."""
        return self._omni.engine._running_counter.value if self._omni is not None else 0

    @property
    def capabilities(self) -> Capabilities | None:
        return self._capabilities

    def prepare(self) -> None:
        """Starts what can begin before `start`, which calls this if nobody has: on the CPU, the fork
        server, whose imports then run beside the caller's own.
        """
        if self._prepared:
            return
        self._prepared = True
        make_discoverable()
        if not vllm_is_for_cpu():
            # vLLM's default of fork would copy a process with threads, this one.
            os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        else:
            # vLLM's CPU sampler would compile itself with a C++ compiler that need not be there, on
            # the first request; read by PyTorch on import, so set before the fork server imports it.
            os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            start_fork_server("backend.preload")

    def start(self) -> None:
        self.prepare()
        self._enter(Phase.LOADING, "importing vLLM-Omni")
        self._thread.start()

    def synthesize(self, request: SpeechRequest) -> EngineRun:
        deployment, loop, speaking = self._deployment, self._loop, self._speaking
        status = replace(self.status, phase=Phase.CLOSED) if self._stop.is_set() else self.status
        if (unavailable := status.unavailable) is not None:
            raise unavailable
        assert deployment is not None
        assert loop is not None
        assert speaking is not None
        prompt.check_request(request, deployment.model, speaking.max_frames, self._first_chunk_limit_frames)
        seed = secrets.randbelow(prompt.MAX_SEED + 1) if request.seed is None else request.seed
        ticket = speaking.admission.enter()
        run = EngineRun(request, seed, loop, lambda: speaking.admission.ahead(ticket))
        serving = asyncio.run_coroutine_threadsafe(speaking.serve(run, ticket), loop)
        # Even where the engine's loop ends before it begins to serve, the caller must not wait for ever.
        serving.add_done_callback(lambda _: run.push(None))
        return run

    def shutdown(self) -> None:
        self._stop.set()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin_stop)
        if self._thread.ident is not None:
            self._thread.join(SHUTDOWN_TIMEOUT_S if self._omni is not None else LOADING_END_TIMEOUT_S)
            if not self.ended:
                end_stage_processes(LOADING_STAGE_END_TIMEOUT_S)
        stop_fork_server()

    @property
    def ended(self) -> bool:
        """False while the engine's thread runs: also after `shutdown`, if it was in the middle of loading."""
        return not self._thread.is_alive()

    def _thread_main(self) -> None:
        try:
            asyncio.run(self._main())
        except _StoppedLoading:
            self._enter(Phase.CLOSED, "shut down")
        except SpeechError as error:
            self._enter(Phase.FAILED, str(error))
        except BaseException as error:
            if self._stop.is_set():
                self._enter(Phase.CLOSED, "shut down")
                return
            logger.exception("The speech engine failed.")
            # Only the error's kind: /health and the page show it to anybody, and its text may hold anything.
            self._enter(
                Phase.FAILED, f"The engine met an unexpected {type(error).__name__}; the log has the details."
            )
        else:
            if self._phase is not Phase.FAILED:
                self._enter(Phase.CLOSED, "shut down")

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with tempfile.TemporaryDirectory(prefix="speech-engine-") as folder:
            try:
                self._load(Path(folder))
                if not self._stop.is_set():
                    await self._warm_up()
                if not self._stop.is_set():
                    self._enter(Phase.READY, "ready")
                await self._watch()
            finally:
                if self._speaking is not None:
                    self._speaking.end_runs()
                    await self._speaking.runs_gone()
                end_stage_processes(STAGE_END_TIMEOUT_S)
                if self._speaking is not None:
                    self._speaking.clean_up()
                if self._omni is not None:
                    self._omni.shutdown()

    def _load(self, folder: Path) -> None:
        """Blocks until both stages are up."""
        started = time.monotonic()
        from vllm_omni.engine.arg_utils import register_omni_models_to_vllm
        from vllm_omni.entrypoints.async_omni import AsyncOmni

        from backend.chunk_ramp import register_request_ramps

        logger.info("vLLM-Omni imported in %.1f s.", time.monotonic() - started)
        if self._stop.is_set():
            raise _StoppedLoading
        # Upstream does so itself, but only after a first failed look at the checkpoint's config.
        register_omni_models_to_vllm()
        self._enter(Phase.LOADING, "finding the checkpoint")
        self._deployment = deployment = plan(self._settings)
        if not deployment.on_gpu:
            use_fork_server()
        if deployment.stage_config.has_request_ramps:
            register_request_ramps()
        stats_file = folder / "frames"
        frame_stats = FrameStatsReader(stats_file)
        os.environ[FRAME_STATS_VARIABLE] = str(stats_file)
        deploy_file = folder / "deploy.yaml"
        deployment.write_deploy_file(deploy_file)
        self._enter(Phase.LOADING, f"starting talker and decoder on {deployment.device}")
        if self._stop.is_set():
            raise _StoppedLoading
        self._omni = AsyncOmni(
            model=str(deployment.model.folder),
            deploy_config=str(deploy_file),
            stage_init_timeout=STAGE_START_TIMEOUT_S,
            init_timeout=STAGE_START_TIMEOUT_S,
            parallel_stage_init=True,
        )
        most = deployment.stage_config.max_concurrency
        self._speaking = Speaking(
            self._omni,
            deployment.model,
            _tokenizer(deployment.model.folder),
            Admission(min(self._settings.concurrency_limit or most, most), self._settings.queue_size),
            frame_stats,
            self._explain,
        )
        if deployment.on_gpu:
            self._speaking.graph_unavailable = deployment.model.family.foreign_predictor
        logger.info("Both stages up after %.1f s.", time.monotonic() - started)

    async def _warm_up(self) -> None:
        """Speaks on both stages, so that nobody's first request pays for lazy initialisation."""
        deployment, speaking = self._deployment, self._speaking
        assert deployment is not None
        assert speaking is not None
        self._enter(Phase.WARMING, "speaking a first sentence on both stages")
        started = time.monotonic()
        places = speaking.admission.limit if deployment.on_gpu else 1
        for together in warm_up.rounds(deployment.model, places):
            alone = len(together) == 1
            await asyncio.gather(*(self._speak_unheard(request, alone) for request in together))
            if self._stop.is_set():
                return
        self._capabilities = self._describe(deployment, speaking)
        speaking.on_report = lambda report: self.on_report(report)
        speaking.warm = True
        logger.info("Warm after %.1f s; RTF %.2f.", time.monotonic() - started, speaking.recent_rtf or 0)

    async def _speak_unheard(self, request: SpeechRequest, alone: bool) -> None:
        """Raises EngineUnavailable unless audio came out."""
        speaking = self._speaking
        assert speaking is not None
        run = EngineRun(request, 0, asyncio.get_running_loop())
        serving = asyncio.create_task(speaking.serve(run, speaking.admission.enter()))
        await asyncio.wait([serving], timeout=WARM_UP_TIMEOUT_S)
        if self._stop.is_set():
            return
        if not serving.done() or run.report is None or not run.report.frames:
            raise EngineUnavailable("The engine could not speak its first sentence; see the log for why.")
        stats = run.report.frame_stats
        # Not so of several: they may be more than the largest graph holds.
        if alone and stats is not None and not stats.graph_frames and stats.fallbacks:
            speaking.graph_unavailable = stats.fallback_reason

    async def _watch(self) -> None:
        """Returns when asked to stop; on the death of a stage process, fails every run first."""
        assert self._stopping is not None
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), HEALTH_CHECK_INTERVAL_S)
            try:
                await self._omni.check_health()
            except Exception as error:
                if not self._stop.is_set():
                    self._fail(_reason(error))
                    await self._stopping.wait()

    def _fail(self, reason: str) -> None:
        if self._phase is Phase.FAILED:
            return
        logger.error("The speech engine has failed: %s", reason)
        self._enter(Phase.FAILED, reason)
        if self._speaking is not None:
            self._speaking.fail(died(reason))

    async def _explain(self, error: Exception) -> SpeechError:
        """What to tell the person whose run met `error`; a dead stage fails the whole engine at once."""
        try:
            await self._omni.check_health()
        except Exception as dead:
            self._fail(_reason(dead))
            return died(self._detail)
        return SpeechError(f"The engine could not speak this ({type(error).__name__}); try again.")

    def _begin_stop(self) -> None:
        if self._speaking is not None:
            self._speaking.end_runs()
        if self._stopping is not None:
            self._stopping.set()

    def _describe(self, deployment: Deployment, speaking: Speaking) -> Capabilities:
        model, config = deployment.model, deployment.stage_config
        talker = self._omni.default_sampling_params_list[0]
        predictor_temperature, predictor_top_k = deployment.predictor_defaults
        return Capabilities(
            model=deployment.model_name,
            device=deployment.device,
            mode=speaking.default_mode,
            tasks=model.tasks,
            languages=model.languages,
            speakers=model.speakers,
            supports_instruction=model.supports_instruction,
            supports_x_vector=model.supports_x_vector,
            supports_predictor_sampling=not model.family.foreign_predictor,
            sample_rate_hz=model.sample_rate_hz,
            samples_per_frame=model.samples_per_frame,
            max_text_chars={task: prompt.max_text_chars(task, model) for task in model.tasks},
            max_frames=speaking.max_frames,
            # Without async chunks everything comes as one.
            chunk_schedule_frames=model.family.chunk_schedule_frames(config) or (speaking.max_frames,),
            max_first_chunk_frames=self._first_chunk_limit_frames,
            notice=" ".join(filter(None, (deployment.notice, deployment.untrained_note))),
            defaults={
                "temperature": talker.temperature,
                "top_k": talker.top_k if talker.top_k > 0 else prompt.MAX_TOP_K,
                "predictor_temperature": predictor_temperature,
                "predictor_top_k": predictor_top_k if predictor_top_k > 0 else prompt.MAX_TOP_K,
            },
            graph_unavailable=speaking.graph_unavailable,
        )

    @property
    def _first_chunk_limit_frames(self) -> int:
        assert self._deployment is not None
        return self._deployment.model.family.first_chunk_limit_frames(self._deployment.stage_config)

    def _enter(self, phase: Phase, detail: str) -> None:
        # The detail first: whoever sees the new phase must not read the old one's detail.
        self._detail, self._phase = detail, phase
        logger.info("Engine %s: %s.", phase.value, detail)


class _StoppedLoading(Exception):
    """The engine was shut down before its stages were started."""


def _reason(error: Exception) -> str:
    """Why vLLM-Omni's health check failed, in words for the page."""
    for stage, name in ((TALKER_STAGE, "talker"), (DECODER_STAGE, "decoder")):
        if f"Stage-{stage} " in str(error):
            return f"the {name}'s process has died"
    logger.error("vLLM-Omni's health check failed: %s", error)
    return "its health check failed; the log says why"


def _tokenizer(folder: Path) -> Tokenize:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), padding_side="left")
    return lambda text: list(tokenizer(text, padding=False, add_special_tokens=False)["input_ids"])
