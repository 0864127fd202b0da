"""Loading a stage configuration, checked before the engine sees it.

vLLM-Omni takes an unknown key as an engine option and meets a wrong number minutes
later, in a stage process; here either is one sentence with file and line.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from backend.contract import SpeechError
from backend.stage_schema import (
    DECODER_STAGE,
    TALKER_STAGE,
    Connector,
    ConnectorExtra,
    SamplingDefaults,
    Section,
    Stage,
    StageConfig,
    SubtalkerSampling,
    only_reference,
)
from backend.yaml_document import DocumentError, Location, YamlDocument, read_yaml

PROFILE_DIR = Path(__file__).resolve().parent.parent / "stage_configs"


@dataclass(frozen=True)
class StageNeeds:
    """What a model asks of its stage configuration."""

    decoder_window_frames: int
    # Codes in a frame.
    codebooks: int
    # Whether it knows `codec_chunk_ramp`.
    grows_chunks: bool


class StageConfigError(SpeechError):
    """The stage configuration cannot be used; the message names file, line, key and what is allowed."""


def profile_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PROFILE_DIR.glob("*.yaml")))


def find_stage_config(path_or_profile: str | Path) -> Path | None:
    """The file meant by a path or a profile's name; None if there is none."""
    if str(path_or_profile) in profile_names():
        return PROFILE_DIR / f"{path_or_profile}.yaml"
    path = Path(path_or_profile).expanduser()
    return path if path.is_file() else None


def load_stage_config(path_or_profile: str | Path, needs: StageNeeds | None) -> StageConfig:
    """Reads and checks a deploy file, given by path or by the name of one in stage_configs/.

    `needs` is the model's part; None skips its checks. Raises StageConfigError with one sentence.
    """
    path = find_stage_config(path_or_profile)
    if path is None:
        raise StageConfigError(
            f"Stage configuration {path_or_profile} is neither a file nor a profile; "
            f"the profiles are {', '.join(profile_names())}."
        )
    try:
        document = read_yaml(path)
        config = StageConfig.model_validate(document.content)
    except DocumentError as error:
        raise StageConfigError(str(error)) from error
    except ValidationError as error:
        raise StageConfigError(_sentence(document, error)) from error
    for location, message in _problems(config, needs):
        raise StageConfigError(f"{document.where(location)}: {message}")
    config._source = path
    return config


def _problems(config: StageConfig, needs: StageNeeds | None) -> Iterator[tuple[Location, str]]:
    """What no single value can get wrong by itself, in the order a person would fix it."""
    stage_ids = [stage.stage_id for stage in config.stages]
    if sorted(stage_ids) != [TALKER_STAGE, DECODER_STAGE]:
        yield (
            ("stages",),
            f"stages must be exactly stage_id 0 (talker) and 1 (decoder), not {stage_ids or 'none'}.",
        )
        return
    yield from _connector_problems(config)
    yield from _chunking_problems(config, needs)
    for index, stage in enumerate(config.stages):
        yield from _capacity_problems(config, stage, ("stages", index), needs)
    yield from _memory_problems(config)


def _connector_problems(config: StageConfig) -> Iterator[tuple[Location, str]]:
    talker_index = config.stages.index(config.talker)
    decoder_index = config.stages.index(config.decoder)
    sides = (
        (talker_index, "output_connectors", config.talker.output_connectors),
        (decoder_index, "input_connectors", config.decoder.input_connectors),
    )
    for index, key, references in sides:
        location: Location = ("stages", index, key)
        if not references or len(references) != 1:
            yield location, f"{key} must name exactly one connector, such as to_stage_1: <name>."
        elif (name := only_reference(references)) not in config.connectors:
            known = ", ".join(config.connectors) or "none"
            yield location, f"{key} names the connector {name}, but connectors defines {known}."
    if config.talker.output_connectors and config.decoder.input_connectors:
        sent = only_reference(config.talker.output_connectors)
        received = only_reference(config.decoder.input_connectors)
        if sent != received:
            yield (
                ("stages", decoder_index, "input_connectors"),
                f"the decoder reads from {received} but the talker writes to {sent}; both must be the same.",
            )


def _chunking_problems(config: StageConfig, needs: StageNeeds | None) -> Iterator[tuple[Location, str]]:
    name = only_reference(config.decoder.input_connectors)
    location: Location = ("connectors", name, "extra")
    chunking = config.chunking
    steady = chunking.codec_chunk_frames
    if not config.async_chunk:
        return
    least_context = needs.decoder_window_frames if needs is not None else 0
    if chunking.codec_left_context_frames < least_context:
        yield (
            (*location, "codec_left_context_frames"),
            f"codec_left_context_frames must be at least {least_context}, the decoder's window, "
            f"not {chunking.codec_left_context_frames}.",
        )
    initial = chunking.initial_codec_chunk_frames
    if initial is not None and initial > steady:
        yield (
            (*location, "initial_codec_chunk_frames"),
            f"initial_codec_chunk_frames must be at most codec_chunk_frames ({steady}), not {initial}.",
        )
    ramp = chunking.codec_chunk_ramp
    if ramp is not None and needs is not None and not needs.grows_chunks:
        yield (
            (*location, "codec_chunk_ramp"),
            "codec_chunk_ramp is not for this model; set initial_codec_chunk_frames instead.",
        )
        return
    if ramp is None:
        if initial is None:
            yield location, "initial_codec_chunk_frames or codec_chunk_ramp is missing; set one of them."
        return
    if len(ramp) < 2 or min(ramp) < 1 or ramp != sorted(ramp) or ramp[-1] > steady:
        yield (
            (*location, "codec_chunk_ramp"),
            "codec_chunk_ramp must be two or more frame counts that never shrink, "
            f"from 1 up to codec_chunk_frames ({steady}), not {ramp}.",
        )


def _capacity_problems(
    config: StageConfig, stage: Stage, location: Location, needs: StageNeeds | None
) -> Iterator[tuple[Location, str]]:
    batched = stage.max_num_batched_tokens
    batched_location: Location = (*location, "max_num_batched_tokens")
    if batched < stage.max_num_seqs:
        yield (
            batched_location,
            f"max_num_batched_tokens of stage {stage.stage_id} must be at least its max_num_seqs "
            f"({stage.max_num_seqs}), not {batched}.",
        )
    max_tokens = stage.default_sampling_params and stage.default_sampling_params.max_tokens
    if max_tokens and max_tokens > stage.max_model_len:
        yield (
            (*location, "default_sampling_params", "max_tokens"),
            f"max_tokens of stage {stage.stage_id} must be at most its max_model_len "
            f"({stage.max_model_len}), not {max_tokens}.",
        )
    if stage.stage_id != DECODER_STAGE or needs is None:
        return
    codes = needs.codebooks
    if batched % codes:
        yield (
            batched_location,
            f"max_num_batched_tokens of stage 1 must be a multiple of {codes}, the codes in a frame, "
            f"not {batched}.",
        )
    window = config.chunking.codec_left_context_frames + config.chunking.codec_chunk_frames
    if batched < codes * window:
        yield (
            batched_location,
            f"max_num_batched_tokens of stage 1 must be at least {codes * window} "
            f"({codes} codes for each of {window} frames of left context and chunk), not {batched}.",
        )


def _memory_problems(config: StageConfig) -> Iterator[tuple[Location, str]]:
    total: defaultdict[str, float] = defaultdict(float)
    for index, stage in enumerate(config.stages):
        for device in stage.devices.split(","):
            total[device.strip()] += stage.gpu_memory_utilization or 0.0
            if total[device.strip()] > 1.0:
                yield (
                    ("stages", index, "gpu_memory_utilization"),
                    "the gpu_memory_utilization of the stages on one device must add up to at most 1, "
                    f"not {total[device.strip()]:.2f}.",
                )


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text (put it in quotes)",
    "list_type": "a list",
    "dict_type": "a group of keys",
    "model_type": "a group of keys",
}


def _sentence(document: YamlDocument, error: ValidationError) -> str:
    # An unknown key first: the missing one beside it is often the same key, misspelt.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    location: Location = first["loc"]
    name = _dotted(location)
    limits = first.get("ctx", {})
    match first["type"]:
        case "extra_forbidden":
            allowed = _allowed_keys(location)
            guess = get_close_matches(str(location[-1]), allowed, n=1)
            hint = f"did you mean {guess[0]}?" if guess else f"allowed here: {', '.join(allowed)}."
            problem = f"{name} is not a known key; {hint}"
        case "missing":
            problem = f"{name} is missing."
        case "literal_error":
            problem = f"{name} must be {limits['expected']}, not {first['input']!r}."
        case "greater_than_equal":
            problem = f"{name} must be at least {limits['ge']}, not {first['input']}."
        case "greater_than":
            problem = f"{name} must be above {limits['gt']}, not {first['input']}."
        case "less_than_equal":
            problem = f"{name} must be at most {limits['le']}, not {first['input']}."
        case kind if kind in _EXPECTED:
            problem = f"{name} must be {_EXPECTED[kind]}, not {first['input']!r}."
        case _:
            problem = f"{name}: {first['msg']}."
    return f"{document.where(location)}: {problem}"


def _dotted(location: Location) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _allowed_keys(location: Location) -> list[str]:
    """The keys of the section that holds the unknown key at `location`."""
    match location[:-1]:
        case ():
            section: type[Section] = StageConfig
        case ("connectors", _):
            section = Connector
        case ("connectors", _, "extra"):
            section = ConnectorExtra
        case ("stages", _, "default_sampling_params"):
            section = SamplingDefaults
        case ("stages", _, "subtalker_sampling_params"):
            section = SubtalkerSampling
        case _:
            section = Stage
    return list(section.model_fields)
