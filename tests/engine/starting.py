"""An engine in this process, from its start to its end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from backend.contract import Phase
from backend.engine import OmniSpeechEngine
from backend.settings import Settings
from tests.engine.processes import descendants, shared_memory

START_TIMEOUT_S = 240
SHUTDOWN_TIMEOUT_S = 10


@contextmanager
def running_engine(settings: Settings) -> Iterator[OmniSpeechEngine]:
    """READY, and speaks on whatever this machine has; shutting it down must leave nothing behind."""
    shared_before, processes_before = shared_memory(), descendants()
    engine = OmniSpeechEngine(settings)
    try:
        engine.start()
        began = time.monotonic()
        while engine.status.phase in (Phase.LOADING, Phase.WARMING):
            assert time.monotonic() - began < START_TIMEOUT_S
            time.sleep(0.1)
        assert engine.status.phase is Phase.READY, engine.status.detail
        yield engine
    finally:
        # Also one that did not start: its stages would run beside those of the next folder's engine.
        began = time.monotonic()
        engine.shutdown()
    assert time.monotonic() - began < SHUTDOWN_TIMEOUT_S
    assert engine.status.phase is Phase.CLOSED
    left = descendants() - processes_before, shared_memory() - shared_before
    assert left == (set(), set()), left
