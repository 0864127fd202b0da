"""The JSON files of a Qwen3-TTS 12 Hz checkpoint, as the published ones have them.

Values that do not depend on the size are those of the published configuration
files (Qwen/Qwen3-TTS-12Hz-*); code in vLLM-Omni relies on several of them, for
example the end-of-speech id 2150 and the 2048 + 1024 rows of the codec table.
"""

from typing import Any

from backend.checkpoint.sizes import Size, Stack, Variant
from backend.checkpoint.text import TextTokenizer

CODE_GROUPS = 16
CODES_PER_GROUP = 2048
CODEC_ROWS = CODES_PER_GROUP + 1024
END_OF_SPEECH_ID = 2150

_CODEC_IDS = {
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": END_OF_SPEECH_ID,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
}
_LANGUAGE_IDS = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
_DIALECT_IDS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
_SPEAKER_IDS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
_SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}

GENERATION_CONFIG: dict[str, Any] = {
    "do_sample": True,
    "repetition_penalty": 1.05,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
    "max_new_tokens": 8192,
}
PREPROCESSOR_CONFIG: dict[str, Any] = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
CODEC_CONFIGURATION: dict[str, Any] = {"framework": "pytorch", "task": "feature-extraction"}
CODEC_PREPROCESSOR_CONFIG: dict[str, Any] = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 24000,
}


def _stack_config(stack: Stack) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "head_dim": stack.head_dim,
        "hidden_size": stack.hidden,
        "intermediate_size": stack.mlp,
        "num_attention_heads": stack.heads,
        "num_hidden_layers": stack.layers,
        "num_key_value_heads": stack.kv_heads,
    }


def _mrope_section(head_dim: int) -> list[int]:
    """The published [24, 20, 20] at head_dim 128, scaled to half of `head_dim` entries."""
    half = head_dim // 2
    side = (half - half * 24 // 64) // 2
    return [half - 2 * side, side, side]


def model_config(size: Size, variant: Variant, tokenizer: TextTokenizer) -> dict[str, Any]:
    """config.json: talker, code predictor and, for `base`, the speaker encoder."""
    named = variant == "custom_voice"
    predictor: dict[str, Any] = _stack_config(size.predictor) | {
        "attention_dropout": 0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * size.predictor.layers,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_code_groups": CODE_GROUPS,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": CODES_PER_GROUP,
    }
    talker: dict[str, Any] = _stack_config(size.talker) | {
        "attention_dropout": 0,
        "code_predictor_config": predictor,
        **_CODEC_IDS,
        "codec_language_id": _LANGUAGE_IDS | (_DIALECT_IDS if variant != "base" else {}),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_tts_talker",
        "num_code_groups": CODE_GROUPS,
        "position_id_per_seconds": 13,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": _mrope_section(size.talker.head_dim),
            "rope_type": "default",
            "type": "default",
        },
        "rope_theta": 1000000,
        "sliding_window": None,
        "spk_id": _SPEAKER_IDS if named else {},
        "spk_is_dialect": {name: _SPEAKER_DIALECTS.get(name, False) for name in _SPEAKER_IDS}
        if named
        else {},
        "text_hidden_size": size.text_hidden,
        "text_vocab_size": size.text_vocab,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": CODEC_ROWS,
    }
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": tokenizer.token_id("assistant"),
        "im_end_token_id": tokenizer.token_id("<|im_end|>"),
        "im_start_token_id": tokenizer.token_id("<|im_start|>"),
        "tts_bos_token_id": tokenizer.token_id("<tts_text_bos>"),
        "tts_eos_token_id": tokenizer.token_id("<tts_text_eod>"),
        "tts_pad_token_id": tokenizer.token_id("<tts_pad>"),
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": size.model_size,
        "tts_model_type": variant,
        "talker_config": talker,
        "dtype": "bfloat16",
    }
    if variant == "base":
        # The x-vector takes a codec row's place in the prompt, so its width is the talker's.
        config["speaker_encoder_config"] = {
            "enc_dim": size.talker.hidden,
            "sample_rate": 24000,
            "enc_channels": list(size.speaker.channels),
            "enc_attention_channels": size.speaker.attention,
            "enc_res2net_scale": size.speaker.res2net_scale,
            "enc_se_channels": size.speaker.squeeze,
        }
    return config


def codec_config(size: Size) -> dict[str, Any]:
    """speech_tokenizer/config.json: a Mimi encoder (32 code books, 16 used) and the causal decoder."""
    decoder: dict[str, Any] = _stack_config(size.decoder) | {
        "attention_dropout": 0.0,
        "codebook_dim": size.decoder_codebook_dim,
        "codebook_size": CODES_PER_GROUP,
        "decoder_dim": size.decoder_dim,
        "hidden_act": "silu",
        "latent_dim": size.decoder_latent,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "num_quantizers": CODE_GROUPS,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "semantic_codebook_size": 4096,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": size.decoder_codebook_dim,
    }
    encoder: dict[str, Any] = _stack_config(size.encoder) | {
        "_frame_rate": 12.5,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_dim": size.encoder_codebook_dim,
        "codebook_size": CODES_PER_GROUP,
        "compress": 2,
        "dilation_growth_rate": 2,
        "hidden_act": "gelu",
        "initializer_range": 0.02,
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-5,
        "normalize": False,
        "num_filters": size.encoder_filters,
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10000.0,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsample_groups": size.encoder.hidden,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_cache": False,
        "use_causal_conv": True,
        "use_conv_shortcut": False,
        "use_streaming": False,
        "vector_quantization_hidden_dimension": size.encoder_codebook_dim,
    }
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": CODE_GROUPS,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "decoder_config": decoder,
        "encoder_config": encoder,
        "dtype": "float32",
    }
