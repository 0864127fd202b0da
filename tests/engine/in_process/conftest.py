"""One engine in this process for all tests of this folder, and gone before those of the next."""

from collections.abc import Iterator

import pytest

from backend.contract import Phase
from backend.engine import OmniSpeechEngine
from backend.settings import Settings
from tests.engine.in_process.speaking import CONCURRENCY_LIMIT, QUEUE_SIZE
from tests.engine.starting import running_engine


@pytest.fixture(scope="package")
def engine() -> Iterator[OmniSpeechEngine]:
    settings = Settings(concurrency_limit=CONCURRENCY_LIMIT, queue_size=QUEUE_SIZE, _cli_parse_args=False)
    with running_engine(settings) as engine:
        yield engine


@pytest.fixture(autouse=True)
def left_idle(engine: OmniSpeechEngine) -> Iterator[None]:
    """Whatever a test does, the engine is ready and its stages are empty after it."""
    yield
    assert engine.status.phase is Phase.READY, engine.status.detail
    assert (engine.status.running, engine.status.queued, engine.requests_in_stages()) == (0, 0, 0)
