import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from backend.checkpoint import (
    SIZES,
    VARIANTS,
    configs,
    is_untrained,
    make_checkpoint,
    networks,
)
from backend.checkpoint.layout import codec_shapes, model_shapes
from backend.checkpoint.pace import FRAMES_PER_TEXT_TOKEN
from backend.checkpoint.text import train_tokenizer
from backend.reference_audio import load_reference_clip
from backend.voices import load_preset_voices
from tests.talker_simulation import TalkerSimulation

ROOT = Path(__file__).resolve().parent.parent
SENTENCE = "Hello world, this is a test of the speech system."

FILES = {
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/configuration.json",
    "speech_tokenizer/preprocessor_config.json",
    "speech_tokenizer/model.safetensors",
    "untrained.json",
}


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_checkpoint(folder, "tiny", "base")
    return folder


@pytest.fixture(scope="module")
def talker(tiny: Path) -> TalkerSimulation:
    return TalkerSimulation(tiny)


@pytest.fixture(scope="module")
def upstream_codec(tiny: Path) -> Any:
    from vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz import (
        configuration_qwen3_tts_tokenizer_v2 as configuration,
    )
    from vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz import (
        modeling_qwen3_tts_tokenizer_v2 as modeling,
    )

    config = configuration.Qwen3TTSTokenizerV2Config(**read_json(tiny / "speech_tokenizer/config.json"))
    model = modeling.Qwen3TTSTokenizerV2Model(config).eval()
    model.load_state_dict(load_file(tiny / "speech_tokenizer/model.safetensors"), strict=True)
    return model


# Layout


# Number of tensors, and SHA-256 of the sorted lines "name shape", taken from the state dicts of the reference
# package's modules (qwen-tts 0.1.1) at the published sizes; the text vocabulary was 2048 there too.
REFERENCE_MODEL = {"0.6b": (402, "8c589521b0b5f55c"), "1.7b": (404, "9bd76ec86ca05771")}
REFERENCE_CODEC = (496, "062efdddf9692dea")


def fingerprint(shapes: dict[str, tuple[int, ...]]) -> tuple[int, str]:
    lines = "".join(f"{name} {shape}\n" for name, shape in sorted(shapes.items()))
    return len(shapes), hashlib.sha256(lines.encode()).hexdigest()[:16]


@pytest.mark.parametrize("size", REFERENCE_MODEL)
def test_full_sizes_have_the_reference_s_tensors(size: str) -> None:
    config = configs.model_config(SIZES[size], "custom_voice", train_tokenizer(SIZES[size].text_vocab))
    model, codec = model_shapes(config), codec_shapes(configs.codec_config(SIZES[size]))
    hidden = SIZES[size].talker.hidden
    assert model["talker.model.layers.27.mlp.down_proj.weight"] == (hidden, 3 * hidden)
    assert codec["decoder.decoder.1.block.1.conv.weight"] == (1536, 768, 16)
    assert fingerprint(model) == REFERENCE_MODEL[size]
    assert fingerprint(codec) == REFERENCE_CODEC


def test_the_projection_to_the_predictor_is_absent_where_it_would_be_an_identity() -> None:
    name = "talker.code_predictor.small_to_mtp_projection.weight"
    tokenizer = train_tokenizer(2048)
    assert name not in model_shapes(configs.model_config(SIZES["0.6b"], "base", tokenizer))
    assert model_shapes(configs.model_config(SIZES["1.7b"], "base", tokenizer))[name] == (1024, 2048)


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_base_has_a_speaker_encoder_and_only_custom_voice_named_speakers(variant: Any) -> None:
    config = configs.model_config(SIZES["tiny"], variant, train_tokenizer(1024))
    encoder = [name for name in model_shapes(config) if name.startswith("speaker_encoder.")]
    assert bool(encoder) == (variant == "base")
    assert bool(config["talker_config"]["spk_id"]) == (variant == "custom_voice")
    assert config["tts_model_type"] == variant


def test_the_files_are_the_published_ones_plus_a_marker_and_not_executable(tiny: Path) -> None:
    files = {str(file.relative_to(tiny)): file for file in tiny.rglob("*") if file.is_file()}
    assert set(files) == FILES
    assert {stat.S_IMODE(file.stat().st_mode) for file in files.values()} == {0o644}
    assert sum(file.stat().st_size for file in files.values()) < 60e6


def test_the_tensors_on_disk_have_the_derived_names_shapes_and_types(tiny: Path) -> None:
    for folder, shapes, dtype in (
        (tiny, model_shapes(read_json(tiny / "config.json")), "BF16"),
        (tiny / "speech_tokenizer", codec_shapes(read_json(tiny / "speech_tokenizer/config.json")), "F32"),
    ):
        with safe_open(folder / "model.safetensors", "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            assert {name: tuple(part.get_shape()) for name, part in slices.items()} == shapes
            assert {part.get_dtype() for part in slices.values()} == {dtype}


def test_the_templates_tokenize_as_the_prompt_builder_slices_them(talker: TalkerSimulation) -> None:
    tokenizer, config = talker.tokenizer, talker.config
    start, end = config["im_start_token_id"], config["im_end_token_id"]
    role = [start, config["assistant_token_id"], tokenizer("\n")["input_ids"][0]]
    ids = tokenizer("<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    assert ids[:3] == role
    assert ids[-5:] == [end, role[2], *role]
    assert tokenizer.decode(ids[3:-5]) == "Hi!"
    assert talker.token_count("<|im_start|>user\n") == talker.token_count("<|im_start|>system\n") == 3
    assert max(tokenizer("<|audio_pad|>")["input_ids"]) < config["talker_config"]["text_vocab_size"]


@pytest.mark.parametrize("text", ["naïve café", "你好世界", "🎉 ok", "שלום", "a\tb\r\n"])
def test_any_text_survives_the_tokenizer(talker: TalkerSimulation, text: str) -> None:
    ids = talker.tokenizer(text)["input_ids"]
    assert talker.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


# Determinism and storage


def test_the_same_seed_gives_the_same_bytes_in_another_process(tiny: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "scripts/make_checkpoint.py",
        "--size",
        "tiny",
        "--variant",
        "base",
        "--seed",
        "0",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "again")], cwd=ROOT, check=True, capture_output=True
    )
    assert b"tiny base, 46.5 MB" in done.stdout
    assert digests(tmp_path / "again") == digests(tiny)


def test_another_seed_gives_other_weights_and_the_same_tokenizer(tiny: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "tiny", "base", seed=1)
    ours, other = digests(tiny), digests(tmp_path)
    same = {name for name in FILES if ours[name] == other[name]}
    assert same == FILES - {"model.safetensors", "speech_tokenizer/model.safetensors", "untrained.json"}


def test_only_our_checkpoints_count_as_untrained(tiny: Path, tmp_path: Path) -> None:
    assert is_untrained(tiny)
    assert is_untrained(str(tiny))
    assert not is_untrained(tmp_path)
    assert not is_untrained("Qwen/Qwen3-TTS-12Hz-0.6B-Base")


def test_importing_the_package_loads_neither_torch_nor_vllm() -> None:
    code = "import backend.checkpoint, sys\nprint({'torch', 'transformers', 'vllm'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


# Behaviour


@pytest.mark.parametrize("streamed", [True, False], ids=["text streamed", "text in the prompt"])
def test_speech_ends_by_itself_and_longer_text_takes_longer(talker: TalkerSimulation, streamed: bool) -> None:
    means = []
    for text in ("Good morning.", SENTENCE, f"{SENTENCE} {SENTENCE} {SENTENCE}"):
        frames = talker.frames_until_end(text, streamed)
        tokens = talker.token_count(text)
        # A few frames are fixed costs, and text in the prompt weighs a little more.
        low, high = FRAMES_PER_TEXT_TOKEN * tokens * 0.8, FRAMES_PER_TEXT_TOKEN * tokens * 1.4 + 6
        assert low <= frames.min()
        assert frames.max() <= high
        means.append(frames.float().mean().item())
    assert means == sorted(means)
    assert means[2] > 2 * means[1]


def test_greedy_decoding_ends_too(talker: TalkerSimulation) -> None:
    frames = talker.frames_until_end(SENTENCE, greedy=True, runs=1)
    assert 20 <= frames.item() <= 60


def test_an_instruction_is_not_counted_as_text(talker: TalkerSimulation) -> None:
    plain = talker.frames_until_end(SENTENCE, streamed=False).float().mean()
    instructed = talker.frames_until_end(SENTENCE, streamed=False, instruction=f"Say it calmly. {SENTENCE}")
    assert instructed.float().mean().item() == pytest.approx(plain.item(), rel=0.2)


def test_logits_are_lively(talker: TalkerSimulation) -> None:
    talker.frames_until_end(SENTENCE)
    assert sum(talker.logits_std) / len(talker.logits_std) == pytest.approx(3.0, rel=0.1)


def test_the_codec_loads_upstream_and_emits_audible_audio(upstream_codec: Any) -> None:
    codes = torch.randint(2048, (2, 40, 16), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        audio = torch.stack(upstream_codec.decode(codes).audio_values)
    assert audio.shape == (2, 40 * 1920)
    assert audio.square().mean().sqrt().item() == pytest.approx(0.1, rel=0.25)
    assert abs(audio.mean().item()) < 0.01
    assert audio.abs().max() < 1


@pytest.mark.parametrize("voice", load_preset_voices(), ids=lambda voice: voice.name)
def test_the_encoder_gives_varied_codes_for_real_voices(upstream_codec: Any, voice: Any) -> None:
    samples = torch.from_numpy(load_reference_clip(voice.audio_path).samples[: 40 * 1920])[None]
    with torch.inference_mode():
        encoded = upstream_codec.encode(samples, torch.ones(samples.shape, dtype=torch.long))
    codes = encoded.audio_codes[0]
    assert codes.shape == (samples.shape[1] // 1920 + bool(samples.shape[1] % 1920), 16)
    for group in (0, 1, 8, 15):
        assert len(codes[:, group].unique()) > len(codes) / 2


def test_our_codec_networks_are_upstream_s(upstream_codec: Any, tiny: Path) -> None:
    weights = load_file(tiny / "speech_tokenizer/model.safetensors")
    config = read_json(tiny / "speech_tokenizer/config.json")
    codes = torch.randint(2048, (2, 16, 12), generator=torch.Generator().manual_seed(2))
    audio = 0.1 * torch.randn((2, 8 * 1920), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        decoded = networks.decode_codes(weights, config["decoder_config"], codes)
        torch.testing.assert_close(decoded, upstream_codec.decoder(codes)[:, 0], atol=1e-4, rtol=0)
        encoder = upstream_codec.encoder
        hidden = encoder.encoder_transformer(encoder.encoder(audio[:, None]).transpose(1, 2))[0]
        latents = networks.encode_latents(weights, config["encoder_config"], audio)
        torch.testing.assert_close(latents, encoder.downsample(hidden.transpose(1, 2)), atol=1e-4, rtol=0)


def test_x_vectors_of_real_voices_are_upstream_s_as_loud_as_a_codec_row_and_differ(tiny: Path) -> None:
    from vllm_omni.model_executor.models.qwen3_tts.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
    from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import mel_spectrogram
    from vllm_omni.model_executor.models.qwen3_tts.qwen3_tts_talker import Qwen3TTSSpeakerEncoder

    config = read_json(tiny / "config.json")["speaker_encoder_config"]
    prefix = "speaker_encoder."
    weights = {k: w.float() for k, w in load_file(tiny / "model.safetensors").items() if k.startswith(prefix)}
    encoder = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**config)).eval()
    encoder.load_state_dict({name.removeprefix(prefix): w for name, w in weights.items()}, strict=True)
    vectors = []
    for voice in load_preset_voices():
        samples = torch.from_numpy(load_reference_clip(voice.audio_path).samples)[None]
        mel = mel_spectrogram(samples, 1024, 128, 24000, 256, 1024, 0, 12000)
        with torch.inference_mode():
            vector = encoder(mel.transpose(1, 2))[0]
            torch.testing.assert_close(networks.x_vector(weights, config, mel)[0], vector, atol=1e-4, rtol=0)
        assert 0.25 < vector.std() < 1.0
        vectors.append(vector)
    stacked = torch.stack(vectors)
    assert torch.pdist(stacked).min() > 0.1 * stacked.norm(dim=1).mean()
