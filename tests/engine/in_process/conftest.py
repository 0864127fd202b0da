"""One engine in this process for all tests of this folder, and gone before those of the next."""

import time
from collections.abc import Iterator

import pytest

from backend.contract import Phase
from backend.engine import OmniSpeechEngine
from backend.settings import Settings
from tests.engine.in_process.speaking import CONCURRENCY_LIMIT, QUEUE_SIZE
from tests.engine.processes import descendants, shared_memory

START_TIMEOUT_S = 240
SHUTDOWN_TIMEOUT_S = 10


@pytest.fixture(scope="package")
def engine() -> Iterator[OmniSpeechEngine]:
    """READY, and speaks on whatever this machine has; shutting it down must leave nothing behind."""
    shared_before, processes_before = shared_memory(), descendants()
    settings = Settings(concurrency_limit=CONCURRENCY_LIMIT, queue_size=QUEUE_SIZE, _cli_parse_args=False)
    engine = OmniSpeechEngine(settings)
    engine.start()
    began = time.monotonic()
    while engine.status.phase in (Phase.LOADING, Phase.WARMING):
        assert time.monotonic() - began < START_TIMEOUT_S
        time.sleep(0.1)
    assert engine.status.phase is Phase.READY, engine.status.detail
    yield engine
    began = time.monotonic()
    engine.shutdown()
    assert time.monotonic() - began < SHUTDOWN_TIMEOUT_S
    assert engine.status.phase is Phase.CLOSED
    assert descendants() - processes_before == set()
    assert shared_memory() - shared_before == set()


@pytest.fixture(autouse=True)
def left_idle(engine: OmniSpeechEngine) -> Iterator[None]:
    """Whatever a test does, the engine is ready and its stages are empty after it."""
    yield
    assert engine.status.phase is Phase.READY, engine.status.detail
    assert (engine.status.running, engine.status.queued, engine.requests_in_stages()) == (0, 0, 0)
