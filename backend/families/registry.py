"""Which families there are, and which one a checkpoint belongs to."""

from pathlib import Path

from backend.families.audio8 import AUDIO8
from backend.families.family import CheckpointError, ModelFamily, ModelInfo, read_json
from backend.families.qwen3_tts import QWEN3_TTS

FAMILIES: tuple[ModelFamily, ...] = (QWEN3_TTS, AUDIO8)
CONFIG_FILES = tuple(dict.fromkeys(name for family in FAMILIES for name in family.config_files))


def read_model_info(folder: Path) -> ModelInfo:
    """What the checkpoint in `folder` can do. Raises CheckpointError with a sentence."""
    config = read_json(folder, "config.json")
    model_type = config.get("model_type") if isinstance(config, dict) else None
    family = next((family for family in FAMILIES if family.model_type == model_type), None)
    if family is None:
        known = " or ".join(family.name for family in FAMILIES)
        raise CheckpointError(
            f"{folder} is not a checkpoint of {known} (its model_type is {model_type}); "
            f"give --model one that is, such as {QWEN3_TTS.example_model}."
        )
    try:
        return family.read(folder, config)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{folder} is not a checkpoint of {family.name} ({error} is missing from its config files); "
            f"give --model one that is, such as {family.example_model}."
        ) from error
