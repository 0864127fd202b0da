"""Binding a stage process to its own cores."""

import logging
import os

import torch

logger = logging.getLogger(__name__)

# Both stages run small batches: beyond this, threads wait for each other longer than they work.
MAX_THREADS = 4


def bind_cores(cores_list: str) -> None:
    """Binds this process to the cores named, with one PyTorch thread each, at most MAX_THREADS."""
    cores = parse_cores(cores_list)
    if cores:
        # Every thread: some were started by imports, before this process knew its stage.
        for thread_id in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread_id), cores)
    torch.set_num_threads(min(MAX_THREADS, len(os.sched_getaffinity(0))))
    logger.info("Stage process %d on cores %s.", os.getpid(), sorted(os.sched_getaffinity(0)))


def parse_cores(cores_list: str) -> set[int]:
    """The cores in "0,2-3"; none for "", "auto" or "nobind", vLLM's words for leaving them alone."""
    if cores_list in ("", "auto", "nobind"):
        return set()
    cores: set[int] = set()
    for part in cores_list.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores & os.sched_getaffinity(0)
