"""Starts stage processes from a fork server that has already imported what they need.

vLLM spawns a fresh interpreter for each stage, and each spends most of its start
importing vLLM. A fork server imports once, at the same time as the application
does, and every stage is then a fork of it: ready in milliseconds, sharing its memory.

For the CPU only: with a GPU those imports reach for CUDA, which survives no fork.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import time
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any


class _StageProcess(ForkServerProcess):
    """A fork of the server that takes on the environment its creator had when starting it.

    vLLM-Omni tells a stage its devices and cores by changing its own environment
    around `start()`; a fork server's children would otherwise miss that.
    """

    _environment: dict[str, str]

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        # Ctrl-C reaches every process of the terminal's group; the application alone
        # should act on it, and end its stages in order.
        os.setsid()
        super().run()


class _StageContext(ForkServerContext):
    Process = _StageProcess


_context = _StageContext()


def start_fork_server(*preload: str) -> None:
    """Starts the server, which imports the `preload` modules on its own time; returns at once."""
    from multiprocessing import forkserver

    _context.set_forkserver_preload(list(preload))
    forkserver.ensure_running()


def use_fork_server() -> None:
    """Makes vLLM-Omni start its stage processes from the server, for as long as this process lives."""
    from vllm.model_executor.models import registry
    from vllm_omni.engine import stage_engine_core_proc_manager

    stage_engine_core_proc_manager.get_mp_context = lambda: _context
    # vLLM looks a model class over in a fresh interpreter, lest importing it touches CUDA.
    registry._run_in_subprocess = lambda fn: fn()


def end_stage_processes(timeout_s: float) -> None:
    """Asks all stages to end at once, and ends those that have not in time; upstream then only tidies up.

    It would ask one after the other, and on a GPU each takes seconds to leave its card.
    """
    # What it would report as a dead stage is what was asked for.
    logging.getLogger("vllm_omni").setLevel(logging.CRITICAL)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    stages = [p for p in multiprocessing.active_children() if p.name.startswith("StageEngineCoreProc")]
    for stage in stages:
        stage.terminate()
    deadline = time.monotonic() + timeout_s
    for stage in stages:
        stage.join(max(0.0, deadline - time.monotonic()))
    # One that is still loading may not have listened.
    for stage in stages:
        stage.kill()


def stop_fork_server() -> None:
    """Ends the server, and with it any stage process still alive: those die with their parent."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        # It holds nothing to save, and tearing down its imports would take seconds.
        with contextlib.suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
