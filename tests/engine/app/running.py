"""`python app.py` as its own process, and what it leaves behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from tests.engine.processes import shared_memory

ROOT = Path(__file__).resolve().parents[3]
READY_TIMEOUT_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class App:
    """Started from a folder that is not the repository's, as the leader of a process group."""

    def __init__(self, folder: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._shared_before = shared_memory()
        self._out, self._err = folder / "out.log", folder / "err.log"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, ROOT / "app.py", "--port", str(self.port), *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": ""},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._out.read_text(errors="replace") + self._err.read_text(errors="replace")

    @property
    def error_lines(self) -> list[str]:
        return self._err.read_text(errors="replace").splitlines()

    def health(self) -> tuple[int, dict[str, Any]] | None:
        """Status and content of /health; None while nothing listens."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return None

    def wait_for(self, phase: str, timeout_s: float = READY_TIMEOUT_S) -> list[tuple[int, dict[str, Any]]]:
        """Waits until /health tells `phase`; gives all that it told."""
        told: list[tuple[int, dict[str, Any]]] = []
        began = time.monotonic()
        while not told or told[-1][1]["phase"] != phase:
            assert self.process.poll() is None, f"the app has ended:\n{self.log[-3000:]}"
            assert time.monotonic() - began < timeout_s, f"{phase} never came:\n{self.log[-3000:]}"
            if (answer := self.health()) is not None:
                told.append(answer)
            time.sleep(0.05)
        return told

    def stop(self, number: signal.Signals) -> tuple[int, float]:
        """Exit code and seconds taken. Ctrl-C reaches the whole process group, as from a terminal."""
        began = time.monotonic()
        if number is signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        code = self.process.wait(60)
        return code, time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """All that this app has started and that still live, wherever they are in the tree."""
        return [p for p in psutil.process_iter() if p.pid != self.process.pid and self._writes_our_log(p)]

    def stage_processes(self) -> list[psutil.Process]:
        """Talker and decoder, in no particular order: the fork server's children."""
        servers = [
            child
            for child in psutil.Process(self.process.pid).children()
            if "multiprocessing.forkserver" in " ".join(child.cmdline())
        ]
        return [stage for server in servers for stage in server.children()]

    def _writes_our_log(self, process: psutil.Process) -> bool:
        # Not by a variable in its environment: a process that sets its title overwrites that.
        try:
            return Path(f"/proc/{process.pid}/fd/2").readlink() == self._err
        except OSError:
            return False

    def assert_nothing_left(self) -> None:
        # The last of them may be on its way out.
        deadline = time.monotonic() + 2
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, [f"{process.pid} {process.cmdline()}" for process in left]
        assert not (extra := shared_memory() - self._shared_before), extra

    def kill(self) -> None:
        """For the end of a test that has gone wrong."""
        for process in (*self.processes(), self.process):
            process.kill()
        self.process.wait(10)
