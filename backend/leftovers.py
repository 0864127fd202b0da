"""What an aborted run leaves in shared memory.

The talker hands its codec frames over in segments that the decoder reads and unlinks. A segment
written while the run was being aborted has no reader any more, and vLLM-Omni 0.30 keeps it, and
its lock file, for good.
"""

import contextlib
import logging
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = Path("/dev/shm")


def remove_leftovers(request_id: str) -> int:
    """Unlinks every segment of a run that has ended; gives how many there were."""
    segments = list(_FOLDER.glob(f"{request_id}-*"))
    for path in segments:
        with contextlib.suppress(OSError, ValueError):
            # By its own class, so that the resource tracker, which all processes share, forgets it too.
            segment = SharedMemory(name=path.name)
            segment.close()
            segment.unlink()
    for lock in _FOLDER.glob(f"shm_{request_id}-*_lockfile.lock"):
        lock.unlink(missing_ok=True)
    if segments:
        logger.debug("%s: %d chunks were left in shared memory.", request_id, len(segments))
    return len(segments)
