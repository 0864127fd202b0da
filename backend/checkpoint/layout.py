"""Which tensors a Qwen3-TTS 12 Hz checkpoint holds, derived from its two config files."""

from typing import Any

Shapes = dict[str, tuple[int, ...]]

# Of the published speaker encoder (vllm_omni .../qwen3_tts/configuration_qwen3_tts.py); not in config.json.
MEL_BANDS = 128
SPEAKER_KERNELS = (5, 3, 3, 3, 1)


def _conv(shapes: Shapes, name: str, out_ch: int, in_ch: int, kernel: int, bias: bool = True) -> None:
    shapes[f"{name}.weight"] = (out_ch, in_ch, kernel)
    if bias:
        shapes[f"{name}.bias"] = (out_ch,)


def _linear(shapes: Shapes, name: str, out_dim: int, in_dim: int) -> None:
    shapes[f"{name}.weight"] = (out_dim, in_dim)
    shapes[f"{name}.bias"] = (out_dim,)


def _attention(shapes: Shapes, name: str, config: dict[str, Any]) -> None:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes[f"{name}.q_proj.weight"] = (query, hidden)
    shapes[f"{name}.k_proj.weight"] = (key, hidden)
    shapes[f"{name}.v_proj.weight"] = (key, hidden)
    shapes[f"{name}.o_proj.weight"] = (hidden, query)


def _gated_mlp(shapes: Shapes, name: str, config: dict[str, Any]) -> None:
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    shapes[f"{name}.gate_proj.weight"] = (mlp, hidden)
    shapes[f"{name}.up_proj.weight"] = (mlp, hidden)
    shapes[f"{name}.down_proj.weight"] = (hidden, mlp)


def _qwen3_stack(shapes: Shapes, name: str, config: dict[str, Any]) -> None:
    hidden = config["hidden_size"]
    for i in range(config["num_hidden_layers"]):
        layer = f"{name}.layers.{i}"
        _attention(shapes, f"{layer}.self_attn", config)
        shapes[f"{layer}.self_attn.q_norm.weight"] = (config["head_dim"],)
        shapes[f"{layer}.self_attn.k_norm.weight"] = (config["head_dim"],)
        _gated_mlp(shapes, f"{layer}.mlp", config)
        shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
    shapes[f"{name}.norm.weight"] = (hidden,)


def model_shapes(config: dict[str, Any]) -> Shapes:
    """Names and shapes of model.safetensors (bfloat16) for a config.json."""
    talker = config["talker_config"]
    predictor = talker["code_predictor_config"]
    hidden, text_hidden = talker["hidden_size"], talker["text_hidden_size"]
    shapes: Shapes = {}
    _qwen3_stack(shapes, "talker.model", talker)
    shapes["talker.model.codec_embedding.weight"] = (talker["vocab_size"], hidden)
    shapes["talker.model.text_embedding.weight"] = (talker["text_vocab_size"], text_hidden)
    _linear(shapes, "talker.text_projection.linear_fc1", text_hidden, text_hidden)
    _linear(shapes, "talker.text_projection.linear_fc2", hidden, text_hidden)
    shapes["talker.codec_head.weight"] = (talker["vocab_size"], hidden)
    _qwen3_stack(shapes, "talker.code_predictor.model", predictor)
    for i in range(predictor["num_code_groups"] - 1):
        shapes[f"talker.code_predictor.model.codec_embedding.{i}.weight"] = (predictor["vocab_size"], hidden)
        shapes[f"talker.code_predictor.lm_head.{i}.weight"] = (
            predictor["vocab_size"],
            predictor["hidden_size"],
        )
    if predictor["hidden_size"] != hidden:  # an identity, hence absent, in the published 0.6B
        _linear(shapes, "talker.code_predictor.small_to_mtp_projection", predictor["hidden_size"], hidden)
    if "speaker_encoder_config" in config:
        _speaker_encoder(shapes, "speaker_encoder", config["speaker_encoder_config"])
    return shapes


def _speaker_encoder(shapes: Shapes, name: str, config: dict[str, Any]) -> None:
    channels, scale = config["enc_channels"], config["enc_res2net_scale"]
    squeeze, last = config["enc_se_channels"], channels[-1]
    _conv(shapes, f"{name}.blocks.0.conv", channels[0], MEL_BANDS, SPEAKER_KERNELS[0])
    for i in range(1, len(channels) - 1):
        block, width = f"{name}.blocks.{i}", channels[i]
        _conv(shapes, f"{block}.tdnn1.conv", width, channels[i - 1], 1)
        for j in range(scale - 1):
            part = width // scale
            _conv(shapes, f"{block}.res2net_block.blocks.{j}.conv", part, part, SPEAKER_KERNELS[i])
        _conv(shapes, f"{block}.tdnn2.conv", width, width, 1)
        _conv(shapes, f"{block}.se_block.conv1", squeeze, width, 1)
        _conv(shapes, f"{block}.se_block.conv2", width, squeeze, 1)
    _conv(shapes, f"{name}.mfa.conv", last, last, SPEAKER_KERNELS[-1])
    _conv(shapes, f"{name}.asp.tdnn.conv", config["enc_attention_channels"], 3 * last, 1)
    _conv(shapes, f"{name}.asp.conv", last, config["enc_attention_channels"], 1)
    _conv(shapes, f"{name}.fc", config["enc_dim"], 2 * last, 1)


def codec_shapes(config: dict[str, Any]) -> Shapes:
    """Names and shapes of speech_tokenizer/model.safetensors (float32) for its config.json."""
    shapes: Shapes = {}
    _encoder(shapes, config["encoder_config"])
    _decoder(shapes, config["decoder_config"])
    return shapes


def _encoder(shapes: Shapes, config: dict[str, Any]) -> None:
    width, hidden, codebook = config["num_filters"], config["hidden_size"], config["codebook_dim"]
    _conv(shapes, "encoder.encoder.layers.0.conv", width, config["audio_channels"], config["kernel_size"])
    index = 1
    for ratio in reversed(config["upsampling_ratios"]):
        block, inner = f"encoder.encoder.layers.{index}.block", width // config["compress"]
        _conv(shapes, f"{block}.1.conv", inner, width, config["residual_kernel_size"])
        _conv(shapes, f"{block}.3.conv", width, inner, 1)
        _conv(shapes, f"encoder.encoder.layers.{index + 2}.conv", 2 * width, width, 2 * ratio)
        width, index = 2 * width, index + 3
    _conv(shapes, f"encoder.encoder.layers.{index + 1}.conv", hidden, width, config["last_kernel_size"])
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.encoder_transformer.layers.{i}"
        _attention(shapes, f"{layer}.self_attn", config)
        shapes[f"{layer}.mlp.fc1.weight"] = (config["intermediate_size"], hidden)
        shapes[f"{layer}.mlp.fc2.weight"] = (hidden, config["intermediate_size"])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{norm}.weight"] = shapes[f"{layer}.{norm}.bias"] = (hidden,)
        shapes[f"{layer}.self_attn_layer_scale.scale"] = shapes[f"{layer}.mlp_layer_scale.scale"] = (hidden,)
    _conv(shapes, "encoder.downsample.conv", hidden, hidden, 4, bias=False)
    semantic = config["num_semantic_quantizers"]
    for kind, count in (("semantic", semantic), ("acoustic", config["num_quantizers"] - semantic)):
        name = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        _conv(shapes, f"{name}.input_proj", codebook, hidden, 1, bias=False)
        _conv(shapes, f"{name}.output_proj", hidden, codebook, 1, bias=False)
        for i in range(count):
            book = f"{name}.layers.{i}.codebook"
            shapes[f"{book}.initialized"] = (1,)
            shapes[f"{book}.cluster_usage"] = (config["codebook_size"],)
            shapes[f"{book}.embed_sum"] = (config["codebook_size"], codebook)


def _decoder(shapes: Shapes, config: dict[str, Any]) -> None:
    hidden, latent, codebook = config["hidden_size"], config["latent_dim"], config["codebook_dim"]
    for i in range(config["num_hidden_layers"]):
        layer = f"decoder.pre_transformer.layers.{i}"
        _attention(shapes, f"{layer}.self_attn", config)
        _gated_mlp(shapes, f"{layer}.mlp", config)
        shapes[f"{layer}.input_layernorm.weight"] = shapes[f"{layer}.post_attention_layernorm.weight"] = (
            hidden,
        )
        shapes[f"{layer}.self_attn_layer_scale.scale"] = shapes[f"{layer}.mlp_layer_scale.scale"] = (hidden,)
    shapes["decoder.pre_transformer.norm.weight"] = (hidden,)
    _linear(shapes, "decoder.pre_transformer.input_proj", hidden, latent)
    _linear(shapes, "decoder.pre_transformer.output_proj", latent, hidden)
    semantic = config["num_semantic_quantizers"]
    for kind, count in (("first", semantic), ("rest", config["num_quantizers"] - semantic)):
        name = f"decoder.quantizer.rvq_{kind}"
        _conv(shapes, f"{name}.input_proj", codebook // 2, codebook, 1, bias=False)
        _conv(shapes, f"{name}.output_proj", codebook, codebook // 2, 1, bias=False)
        for i in range(count):
            book = f"{name}.vq.layers.{i}._codebook"
            shapes[f"{book}.cluster_usage"] = (config["codebook_size"],)
            shapes[f"{book}.embedding_sum"] = (config["codebook_size"], codebook // 2)
    _conv(shapes, "decoder.pre_conv.conv", latent, codebook, 3)
    for i, ratio in enumerate(config["upsampling_ratios"]):
        _conv(shapes, f"decoder.upsample.{i}.0.conv", latent, latent, ratio)
        block = f"decoder.upsample.{i}.1"
        _conv(shapes, f"{block}.dwconv.conv", latent, 1, 7)
        shapes[f"{block}.norm.weight"] = shapes[f"{block}.norm.bias"] = shapes[f"{block}.gamma"] = (latent,)
        _linear(shapes, f"{block}.pwconv1", 4 * latent, latent)
        _linear(shapes, f"{block}.pwconv2", latent, 4 * latent)
    width = config["decoder_dim"]
    _conv(shapes, "decoder.decoder.0.conv", width, latent, 7)
    for i, ratio in enumerate(config["upsample_rates"], start=1):
        block = f"decoder.decoder.{i}.block"
        _snake(shapes, f"{block}.0", width)
        # ConvTranspose1d: (in, out, kernel), bias of `out`
        shapes[f"{block}.1.conv.weight"] = (width, width // 2, 2 * ratio)
        width //= 2
        shapes[f"{block}.1.conv.bias"] = (width,)
        for j in (2, 3, 4):
            for act, conv, kernel in (("act1", "conv1", 7), ("act2", "conv2", 1)):
                _snake(shapes, f"{block}.{j}.{act}", width)
                _conv(shapes, f"{block}.{j}.{conv}.conv", width, width, kernel)
    last = len(config["upsample_rates"]) + 1
    _snake(shapes, f"decoder.decoder.{last}", width)
    _conv(shapes, f"decoder.decoder.{last + 1}.conv", 1, width, 7)


def _snake(shapes: Shapes, name: str, width: int) -> None:
    shapes[f"{name}.alpha"] = shapes[f"{name}.beta"] = (width,)
