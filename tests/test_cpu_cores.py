import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.cpu_cores import parse_cores

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("cores_list", "cores"),
    [
        ("0", {0}),
        ("0,2", {0, 2}),
        ("0-3", {0, 1, 2, 3}),
        ("0,2-3,7", {0, 2, 3, 7}),
        ("5-5", {5}),
    ],
)
def test_cores_are_read_as_vllm_writes_them(cores_list: str, cores: set[int]) -> None:
    assert parse_cores(cores_list) == cores


@pytest.mark.parametrize("word", ["", "auto", "nobind"])
def test_words_for_no_binding_name_no_cores(word: str) -> None:
    assert parse_cores(word) == set()


def test_cores_this_process_may_not_use_are_left_out() -> None:
    assert parse_cores("6-12") == {6, 7}
    assert parse_cores("9") == set()


def test_binding_moves_every_thread_and_limits_pytorch_s() -> None:
    code = """if True:
        import os, threading
        gone = threading.Event()
        threading.Thread(target=gone.wait).start()
        from backend.cpu_cores import bind_cores
        import torch
        core = max(os.sched_getaffinity(0))
        bind_cores(str(core))
        threads = os.listdir("/proc/self/task")
        assert len(threads) > 1
        assert all(os.sched_getaffinity(int(thread)) == {core} for thread in threads)
        assert torch.get_num_threads() == 1
        gone.set()
    """
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
