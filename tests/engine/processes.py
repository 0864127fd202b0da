"""What a run of the engine might leave on the machine."""

from pathlib import Path

import psutil


def descendants(pid: int | None = None) -> set[int]:
    """Processes below `pid` (None: this one), but for multiprocessing's tracker of resources."""
    return {
        process.pid
        for process in psutil.Process(pid).children(recursive=True)
        if "resource_tracker" not in " ".join(_command(process))
    }


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def memory_mib(pid: int) -> float:
    """Of `pid` and all below it; what forks share is counted once (proportional set size)."""
    return _proportional_mib(psutil.Process(pid)) + below_mib(pid)


def below_mib(pid: int) -> float:
    """Of all below `pid`, as `memory_mib` counts."""
    return sum(map(_proportional_mib, psutil.Process(pid).children(recursive=True)))


def _proportional_mib(process: psutil.Process) -> float:
    return float(process.memory_full_info().pss) / 2**20


def held_mib(pid: int) -> float:
    """Memory of `pid` and all below it that no file backs, in RAM or swapped out; shared parts count once.

    For growth: what a file backs, such as weights, the kernel drops and reads again as it likes.
    """
    total_kib = 0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:", "SwapPss:")):
                total_kib += int(line.split()[1])
    return total_kib / 2**10
