"""One process a stage on the CPU, bound to its own cores."""

import os

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from backend.cpu_cores import bind_cores

# vLLM's own variable and syntax, as far as a list of cores: "0,1" or "0-3", else "nobind".
CORES_VARIABLE = "VLLM_CPU_OMP_THREADS_BIND"


class CpuExecutor(UniProcExecutor):
    """vLLM's in-process executor, which vLLM refuses on the CPU for want of thread binding, with it.

    Saves a process and a hop a stage, and half of the start-up imports.
    """

    def _init_executor(self) -> None:
        bind_cores(os.environ.get(CORES_VARIABLE, ""))
        super()._init_executor()
