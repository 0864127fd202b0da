from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from uuid import uuid4

import pytest

from backend.leftovers import remove_leftovers

SHARED = Path("/dev/shm")


@pytest.fixture
def run_id() -> Iterator[str]:
    run_id = f"speech-{uuid4().hex[:12]}"
    yield run_id
    for path in SHARED.glob(f"*{run_id}*"):
        path.unlink()


def leave(key: str) -> None:
    segment = SharedMemory(name=key, create=True, size=64)
    segment.close()
    (SHARED / f"shm_{key}_lockfile.lock").touch()


def test_a_runs_segments_and_locks_go_and_anothers_stay(run_id: str) -> None:
    other = f"{run_id[:-1]}{'0' if run_id[-1] != '0' else '1'}"
    for key in (f"{run_id}-0-ab12_0_1", f"{run_id}-1-cd34_0_7", f"{other}-0-ab12_0_1"):
        leave(key)
    assert remove_leftovers(run_id) == 2
    assert list(SHARED.glob(f"*{run_id}*")) == []
    assert len(list(SHARED.glob(f"*{other}*"))) == 2
    assert remove_leftovers(other) == 1


def test_a_lock_alone_goes_too(run_id: str) -> None:
    (SHARED / f"shm_{run_id}-0-ab12_0_1_lockfile.lock").touch()
    assert remove_leftovers(run_id) == 0
    assert list(SHARED.glob(f"*{run_id}*")) == []
