"""The trained codec: quantizers, causality, exact chunks, and its export in the published layout."""

import json
import math
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from backend.checkpoint import networks
from backend.checkpoint.layout import codec_shapes
from scripts.train import train_codec
from scripts.train.codec_data import (
    SILENCE,
    UNKNOWN,
    Speech,
    phone_alphabet,
    phone_classes,
    read_shards,
    voice_shares,
)
from scripts.train.codec_losses import MelLoss, PhoneHead
from scripts.train.codec_model import GROUPS, HOP_SAMPLES, SIZES, Codec, load_codec
from scripts.train.codec_quantizer import ResidualVQ
from scripts.train.codec_step import CodecStep, StepSettings
from scripts.train.encode_corpus import encode_utterances
from scripts.train.export_codec import config_of, export

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "enc_filters": 4,
    "enc_hidden": 32,
    "enc_inter": 64,
    "enc_layers": 1,
    "enc_heads": 2,
    "enc_head_dim": 16,
    "cb_dim": 16,
    "dec_latent": 32,
    "dec_hidden": 32,
    "dec_inter": 64,
    "dec_heads": 2,
    "dec_head_dim": 16,
    "dec_dim": 32,
}
DEPTH = 4


def small_codec(depth: int = DEPTH) -> Codec:
    torch.manual_seed(0)
    return Codec(SMALL, depth).eval()


def noise(frames: int, batch: int = 1) -> torch.Tensor:
    return 0.1 * torch.randn(batch, 1, frames * HOP_SAMPLES, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two voices, one of them held out; each phone is a tone of its own."""
    rng = np.random.default_rng(0)
    tones = {"_": 0, "a": 220, "b": 900, "c": 2500}
    for shard, voice in (("one", "heart"), ("two", "bm_fable"), ("three", "af_bella")):
        rows, sound, start = [], [], 0
        for _ in range(6):
            phones = "_" + "".join(rng.choice(list("abc"), 8)) + "_"
            durations = rng.integers(1500, 5000, len(phones))
            angle = [np.arange(d) * tones[c] / 24000 for c, d in zip(phones, durations, strict=True)]
            n = int(durations.sum())
            rows.append({"voice": voice, "text": phones, "phones": phones, "start": start, "n": n})
            rows[-1]["durations"] = durations.tolist()
            sound.append(np.sin(2 * np.pi * np.concatenate(angle)) * 0.3)
            start += n
        (tmp_path / f"{shard}.pcm").write_bytes((np.concatenate(sound) * 32767).astype("<i2").tobytes())
        (tmp_path / f"{shard}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "unfinished.jsonl").write_text(rows and json.dumps(rows[0]))
    return tmp_path


def test_a_reserved_code_is_never_chosen_even_where_its_vector_is_the_nearest() -> None:
    quantizer = ResidualVQ(hidden=8, dim=4, levels=1, codes=16, reserved=1)
    at_reserved = quantizer.tables()[0, :1].expand(5, -1)
    assert (quantizer.search(at_reserved)[0] != 0).all()
    open_to_all = ResidualVQ(hidden=8, dim=4, levels=1, codes=16)
    assert (open_to_all.search(open_to_all.tables()[0, :1])[0] == 0).all()


def test_group_0_avoids_code_0_and_groups_beyond_the_depth_are_constant() -> None:
    codes = small_codec().encode(noise(40))
    assert codes.shape == (1, GROUPS, 40)
    assert (codes[:, 0] != 0).all()
    assert (codes[:, DEPTH:] == 0).all()
    assert all(codes[0, g].unique().numel() > 1 for g in range(DEPTH))


def test_each_level_brings_the_sum_nearer_after_k_means() -> None:
    torch.manual_seed(0)
    quantizer = ResidualVQ(hidden=8, dim=8, levels=3, codes=64)
    x = torch.randn(3000, 8)
    quantizer.start_from(x, step_frames=300)
    reach = quantizer.search(x)[1].cumsum(0)
    errors = (x - reach).square().mean((1, 2))
    assert errors[0] < 0.6
    assert errors[0] > errors[1] > errors[2]


def test_tables_move_to_what_they_catch_and_dead_codes_restart_at_an_input() -> None:
    torch.manual_seed(0)
    quantizer = ResidualVQ(hidden=8, dim=2, levels=1, codes=8)
    x = torch.cat([torch.full((50, 2), -3.0), torch.full((50, 2), 3.0)]) + 0.01 * torch.randn(100, 2)
    for step in range(400):
        quantizer.follow(x[None], quantizer.search(x)[0], torch.tensor(step % 20 == 0))
    assert (quantizer.search(x)[1][-1] - x).abs().max() < 0.1


def test_quantizing_passes_gradients_straight_through() -> None:
    quantizer = ResidualVQ(hidden=8, dim=4, levels=2, codes=16)
    z = torch.randn(2, 4, 5, requires_grad=True)
    quantizer(z)[0].sum().backward()
    assert torch.equal(z.grad, torch.ones_like(z))


def test_items_use_only_the_levels_they_keep() -> None:
    quantizer = ResidualVQ(hidden=8, dim=4, levels=3, codes=16)
    z = torch.randn(3, 4, 5)
    out, codes, _ = quantizer(z, keep=torch.tensor([0, 1, 3]))
    assert torch.equal(out[0], torch.zeros(4, 5))
    for item, levels in ((1, 1), (2, 3)):
        torch.testing.assert_close(out[item : item + 1], quantizer.lookup(codes[item : item + 1, :levels]))


def test_codes_do_not_depend_on_later_audio_nor_audio_on_later_codes() -> None:
    codec, wav = small_codec(), noise(30)
    changed = wav.clone()
    changed[..., 20 * HOP_SAMPLES :] = 0
    codes, other = codec.encode(wav), codec.encode(changed)
    assert torch.equal(codes[..., :20], other[..., :20])
    assert not torch.equal(codes, other)
    made, cut = codec.decode(codes), codec.decode(codes[..., :20])
    torch.testing.assert_close(made[..., : 20 * HOP_SAMPLES], cut, rtol=0, atol=1e-6)


def test_chunks_with_72_frames_of_left_context_decode_exactly() -> None:
    codec = small_codec()
    codes = torch.randint(1, 2048, (1, GROUPS, 130))
    codes[:, DEPTH:] = 0
    whole = codec.decode(codes)
    worst = {}
    for left in (8, 72):
        parts = []
        for begin in range(0, 130, 25):
            context = min(left, begin)
            chunk = codec.decode(codes[..., begin - context : begin + 25])
            parts.append(chunk[..., context * HOP_SAMPLES :])
        worst[left] = (torch.cat(parts, -1) - whole).abs().max() / whole.std()
    assert worst[72] < 1e-4
    assert worst[8] > 10 * worst[72]


@pytest.mark.parametrize("depth", [DEPTH, 16])
def test_export_has_the_layout_of_the_random_checkpoint_and_decodes_alike(tmp_path: Path, depth: int) -> None:
    codec = small_codec(depth)
    export(codec, tmp_path, torch.float32)
    tensors, config = load_file(tmp_path / "model.safetensors"), config_of(codec.sizes)
    assert json.loads((tmp_path / "config.json").read_text()) == config
    assert {k: tuple(v.shape) for k, v in tensors.items()} == codec_shapes(config)
    codes = codec.encode(noise(12))  # within the decoder's window, which `networks` leaves out
    audio = networks.decode_codes(tensors, config["decoder_config"], codes)
    torch.testing.assert_close(audio, codec.decode(codes)[:, 0], rtol=1e-4, atol=1e-6)


def test_a_plain_search_of_the_exported_tables_finds_the_same_codes(tmp_path: Path) -> None:
    codec, wav = small_codec(), noise(12)
    export(codec, tmp_path, torch.float32)
    tensors, config = load_file(tmp_path / "model.safetensors"), config_of(codec.sizes)
    latents = networks.encode_latents(tensors, config["encoder_config"], wav[:, 0])
    found = []
    for kind, levels in (("semantic", 1), ("acoustic", 15)):
        name = f"encoder.quantizer.{kind}_residual_vector_quantizer"
        left = (tensors[f"{name}.input_proj.weight"][..., 0] @ latents[0]).t()
        for level in range(levels):
            table = tensors[f"{name}.layers.{level}.codebook.embed_sum"]
            found.append(torch.cdist(left, table).argmin(1))
            left = left - table[found[-1]]
    assert torch.equal(torch.stack(found)[None], codec.encode(wav))


def test_full_size_receptive_field_fits_the_left_context() -> None:
    convolutions_frames = 12
    assert 2 + SIZES["dec_layers"] * (SIZES["dec_window"] - 1) + convolutions_frames - 2 <= 72


def test_stress_goes_to_its_vowel_and_length_to_its_owner() -> None:
    alphabet = "abn"
    assert phone_classes("_\u02c8a\u02d0n, b_", alphabet) == [
        SILENCE,
        1,
        1,
        1,
        3,
        SILENCE,
        SILENCE,
        2,
        SILENCE,
    ]
    assert phone_classes("z", alphabet) == [UNKNOWN]
    assert phone_alphabet([{"phones": "_\u02c8ba\u02d0!_"}, {"phones": "n a"}]) == alphabet


def test_presets_get_their_share_and_rare_voices_more_than_theirs() -> None:
    samples = {"heart": 100, "rare": 1, **{f"other{i}": 400 for i in range(20)}}
    shares = voice_shares(samples, ("heart",), least=0.4)
    assert math.isclose(sum(shares.values()), 1)
    assert math.isclose(shares["heart"], 0.4)
    assert math.isclose(shares["other0"] / shares["rare"], 20)


def test_batches_hold_the_corpus_and_its_phones_but_no_held_out_voice(corpus: Path) -> None:
    data = Speech(corpus, "cpu", frames=24, batch=16)
    assert data.summary["voices"] == 2
    assert {s.name for s in read_shards(corpus)} == {"one", "two", "three"}
    wav, labels = data.next()
    assert wav.shape == (16, 1, 24 * HOP_SAMPLES)
    assert labels.shape == (16, 24, 4)
    slots = wav.view(16, 24, 4, 480)
    spectrum = torch.fft.rfft(slots * torch.hann_window(480)).abs()
    peak_hz = spectrum.argmax(-1) * 50
    for phone, hz in enumerate((220, 900, 2500), start=1):
        found = peak_hz[labels == phone]
        assert len(found) > 50
        assert ((found - hz).abs() <= 100).float().mean() > 0.9
    assert slots[labels == SILENCE].abs().median() < 1e-3


def test_an_utterance_has_the_same_codes_alone_and_in_a_batch(corpus: Path) -> None:
    codec = small_codec()
    shard = next(s for s in read_shards(corpus) if s.name == "one")
    starts, lengths = [r["start"] for r in shard.rows], [r["n"] for r in shard.rows]
    together = encode_utterances(codec, shard.pcm, starts, lengths, batch_frames=60)
    alone = [encode_utterances(codec, shard.pcm, [s], [n], 60) for s, n in zip(starts, lengths, strict=True)]
    assert len(together) == sum(math.ceil(n / HOP_SAMPLES) for n in lengths)
    assert np.mean(together == np.concatenate(alone)) > 0.999


def test_spectral_loss_is_0_for_equal_audio_and_grows_with_difference() -> None:
    loss, x = MelLoss(), noise(4)[:, 0]
    y = noise(4, batch=2)[1:, 0]
    assert loss(x, x) == 0
    assert loss(0.9 * x, x) < loss(0.5 * x, x) < loss(0.01 * y, x)


def test_phones_are_learnt_through_the_code_book(corpus: Path) -> None:
    """The head and the encoder, by gradients through the quantizer alone."""
    torch.manual_seed(0)
    data = Speech(corpus, "cpu", frames=16, batch=4)
    codec = small_codec()
    head = PhoneHead(SMALL["cb_dim"], len(data.alphabet) + 1, hidden=32)
    parameters = [*codec.encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, 3e-3)
    entropies = []
    for step in range(60):
        wav, labels = data.next()
        first = codec.quantize(codec.encoder(wav), None, torch.tensor(step % 10 == 0))[0]
        entropy, _ = head(first, labels)
        optimizer.zero_grad()
        entropy.backward()
        optimizer.step()
        entropies.append(entropy.item())
    assert np.mean(entropies[-5:]) < 0.75 * np.mean(entropies[:5])


def test_fixing_the_encoder_trains_the_decoder_alone() -> None:
    from scripts.train.discriminators import Discriminators

    codec = small_codec()
    settings = StepSettings("cpu", 1, frames=18, crops=1, crop=6, disc_frames=4, phone_weight=0, eager=True)
    step = CodecStep(settings, codec, None, Discriminators(channels=2))
    step.set_lrs(1e-3, 1e-3, 1e-3)
    step.adv_weight.fill_(1.0)
    step.start.fill_(9)
    step.wav.copy_(noise(18))
    before = {k: v.clone() for k, v in codec.state_dict().items()}
    for middle in (True, False):
        step.run(quantized=True, middle=middle)
    changed = {k for k, v in codec.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {k for k in before if k.startswith("decoder.")}
    metrics, _ = step.read_metrics()
    assert all(math.isfinite(metrics[k]) and metrics[k] > 0 for k in ("mel", "adv", "fm", "disc"))


def test_training_writes_a_checkpoint_that_loads_and_goes_on(corpus: Path, tmp_path: Path) -> None:
    def train(mode: str, out: str, *more: str) -> list[dict]:
        fixed = "--device cpu --seconds 200 --batch 2 --frames 16 --crops 1 --crop 8 --disc-frames 4"
        fixed += " --check-every 2 --collapse-below 0 --disc-channels 2"
        places = {"corpus": corpus, "out": tmp_path / out, "local": tmp_path / f"{out}-local"}
        options = fixed.split() + [x for k, v in places.items() for x in (f"--{k}", str(v))]
        command = [sys.executable, "-m", "scripts.train.train_codec", mode, *options, *more]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
        assert run.returncode == 0, run.stderr
        return [json.loads(line) for line in run.stdout.splitlines()]

    sizes = json.dumps(SMALL)
    reports = train("spectral", "a", "--sizes", sizes, "--steps", "8", "--free-steps", "3", "--depth", "4")
    assert [r["phase"] for r in reports if "phase" in r][-1] == "spectral"
    judged = ["--steps", "4", "--adv-start", "1", "--adv-ramp", "1"]
    train("finetune", "b", *judged, "--init", str(tmp_path / "a"))
    first, second = load_codec(tmp_path / "a-local" / "codec.pt"), load_codec(tmp_path / "b")
    assert first.depth == second.depth == 4
    wav = noise(10)
    assert torch.equal(first.encode(wav), second.encode(wav))
    codes = first.encode(wav)
    assert not torch.equal(first.decode(codes), second.decode(codes))
    resumed = train("spectral", "c", "--steps", "2", "--init", str(tmp_path / "a-local" / "state.pt"))
    assert resumed[-1]["step"] == 10


@pytest.mark.parametrize("captured", [True, False])
def test_the_corpus_is_never_read_while_a_graph_is_captured(captured: bool) -> None:
    started: list[int] = []
    reading: Future[SimpleNamespace] = Future()
    run = SimpleNamespace(
        a=SimpleNamespace(seed=1),
        step=SimpleNamespace(ready=lambda quantized, middle: captured),
        reader=SimpleNamespace(submit=lambda *_: started.append(1) or reading),
        read_speech=None,
        data=SimpleNamespace(alphabet=""),
        quantized=True,
        number=7,
        now=30.0,
        reload_at=[20.0],
        reading=None,
        say=lambda row: None,
    )
    train_codec.Run.take_new_speech(run, middle=True)
    assert len(started) == captured
    if not captured:  # one that has begun is waited for
        run.reading = reading
        Timer(0.1, reading.set_result, [SimpleNamespace(summary={})]).start()
        train_codec.Run.take_new_speech(run, middle=True)
        assert run.reading is None
        assert run.data.summary == {}
