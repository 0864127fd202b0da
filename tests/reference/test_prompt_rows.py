"""The prompt has the reference package's token ids, and as many rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from backend.checkpoint import BUNDLED_DIR, Variant
from backend.families.qwen3_prompt import additional_information, build_prompt, reference_frames
from backend.families.registry import read_model_info
from tests.reference.captures import BUNDLED, TINY, Capture, capture, check_checkpoint, manifest

CASES = [(name, case) for name in (BUNDLED, TINY) for case in manifest(name)["cases"]]


@pytest.fixture(params=CASES, ids=[case for _, case in CASES])
def case(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[Variant], Path]) -> tuple[Capture, Path]:
    pytest.importorskip("vllm_omni")
    name, which = request.param
    folder = BUNDLED_DIR if name == BUNDLED else tiny_checkpoint("custom_voice")
    check_checkpoint(name, folder)
    return capture(name, which), folder


def test_the_prompt_has_the_reference_s_ids_and_rows(case: tuple[Capture, Path]) -> None:
    from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import (
        build_assistant_text,
        build_instruct_text,
        build_ref_text,
    )

    from backend.engine import _tokenizer

    made, folder = case
    tokenize, model = _tokenizer(folder), read_model_info(folder)
    request = made.request()
    info = additional_information(request)
    assert tokenize(build_assistant_text(info["text"][0])) == made.arrays["text_ids"].tolist()
    if made.case["in_context"]:
        assert tokenize(build_ref_text(info["ref_text"][0])) == made.arrays["clip_text_ids"].tolist()
        assert reference_frames(made.encoded_clip(), model) == len(made.arrays["clip_codes"])
    if made.case["instruction"]:
        assert tokenize(build_instruct_text(info["instruct"][0])) == made.arrays["instruction_ids"].tolist()
    assert len(build_prompt(request, model, tokenize)["prompt_token_ids"]) == made.facts["prompt_rows"]
