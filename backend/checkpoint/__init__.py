"""Qwen3-TTS 12 Hz checkpoints with random weights: made by seed, loadable by vLLM-Omni as published ones are.

Nothing here imports vLLM or transformers, and torch only where a checkpoint is made.
"""

from backend.checkpoint.sizes import SIZES, VARIANTS, Variant
from backend.checkpoint.store import (
    BUNDLED_DIR,
    is_untrained,
    make_checkpoint,
)

__all__ = [
    "BUNDLED_DIR",
    "SIZES",
    "VARIANTS",
    "Variant",
    "is_untrained",
    "make_checkpoint",
]
