"""Audio8 TTS (`arktts`): text alone, or a voice cloned from a clip and its transcript, at 44.1 kHz.

The worked example of docs/adding-a-model.md. Fields and limits are those of vLLM-Omni's own adapter
(entrypoints/openai/tts_adapters/audio8_tts.py).
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from backend.contract import InvalidRequest, SpeechRequest, Task
from backend.families.family import BYTES_PER_BF16, ModelFamily, ModelInfo, Profiles, Tokenize, weights_bytes
from backend.prompt import clean_text
from backend.stage_schema import StageConfig

# Where the prompt is made by the talker, its tokens only reserve places; any token will do.
_PLACEHOLDER_TOKEN = 1
# Of vLLM-Omni's deploy file. The codec looks back further, ever more faintly.
_LEFT_CONTEXT_FRAMES = 25


class Audio8(ModelFamily):
    name = "Audio8 TTS"
    example_model = "Audio8/Audio8-TTS-Preview-0.6b"
    model_type = "arktts"
    config_files = ("config.json",)
    profiles = Profiles(cpu="audio8_cpu", gpu="audio8_gpu")
    # A second a token and at least 15 s, as for Qwen3-TTS, at 21.5 frames a second.
    frames_per_text_token = 21
    least_frame_limit = 320
    # Some 40 s: prompt and speech share a context of 2048.
    max_uncut_text_chars = 600
    grows_chunks = False
    # Its codec is slow on a CPU, and nothing is compiled.
    warm_up_frames = (6, 13)
    foreign_predictor = "Audio8 TTS has a code predictor of its own"

    def read(self, folder: Path, config: dict[str, Any]) -> ModelInfo:
        key_width = config["n_local_heads"] * config["head_dim"]
        return ModelInfo(
            family=self,
            folder=folder,
            tasks=(Task.TEXT_ONLY, Task.VOICE_CLONE),
            languages=("Auto",),
            speakers=(),
            supports_instruction=False,
            supports_x_vector=False,
            sample_rate_hz=config.get("codec_sample_rate", 44_100),
            samples_per_frame=config.get("codec_frame_size", 2048),
            codebooks=config["num_codebooks"],
            decoder_window_frames=_LEFT_CONTEXT_FRAMES,
            talker_bytes=weights_bytes(folder),
            decoder_bytes=weights_bytes(folder, "codec.pth"),
            kv_bytes_per_token=2 * BYTES_PER_BF16 * config["n_layer"] * key_width,
            talker_sampling={"temperature": 0.7, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.0},
            predictor_sampling={"do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.9},
        )

    def check(self, request: SpeechRequest) -> None:
        for param, text in (("text", request.text), ("transcript", request.transcript)):
            try:
                _normalized(text)
            except ValueError as error:
                raise InvalidRequest(
                    f"Leave control tokens such as <|im_end|> out of the {param}.", param
                ) from error

    def build_prompt(self, request: SpeechRequest, model: ModelInfo, tokenize: Tokenize) -> dict[str, Any]:
        """Text alone is a prompt of tokens; with a clip the talker makes it, and is told its length."""
        from vllm.inputs import tokens_input
        from vllm_omni.model_executor.models.audio8_tts import prompt_utils
        from vllm_omni.model_executor.models.audio8_tts.codec_utils import estimate_reference_code_frames

        tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: tokenize(text))
        if request.reference is None:
            tokens, text = prompt_utils.build_text_only_prompt_ids(tokenizer, clean_text(request.text))
            return {**tokens_input(prompt_token_ids=tokens), "additional_information": {"text": [text]}}
        import torch

        clip = request.reference
        text = _normalized(request.text)
        transcript = _normalized(request.transcript, add_default_speaker=True)
        frames = estimate_reference_code_frames(len(clip.samples), clip.sample_rate_hz)
        length = prompt_utils.estimate_voice_clone_prompt_len(tokenizer, text, transcript, frames)
        information = {
            "audio8_structured_voice_clone": True,
            "text": text,
            "ref_text": transcript,
            "ref_audio_wav": torch.tensor(clip.samples),
            "ref_audio_sr": clip.sample_rate_hz,
        }
        placeholders = tokens_input(prompt_token_ids=[_PLACEHOLDER_TOKEN] * length)
        return {**placeholders, "additional_information": information}

    def extra_args(self, seed: int) -> dict[str, Any]:
        return {"tts_local_seed": seed}

    def chunk_schedule_frames(self, config: StageConfig) -> tuple[int, ...]:
        """Chunks of the first one's size until the next would pass the steady size, then that."""
        if not config.async_chunk:
            return ()
        steady = config.chunking.codec_chunk_frames
        first = config.chunking.initial_codec_chunk_frames or steady
        return (*[first] * (steady // first), steady)


def _normalized(text: str, **options: bool) -> str:
    """The text as the prompt has it. Raises ValueError for control tokens in it."""
    from vllm_omni.model_executor.models.audio8_tts.prompt_utils import normalize_text

    normalized: str = normalize_text(clean_text(text), **options)
    return normalized


AUDIO8 = Audio8()
