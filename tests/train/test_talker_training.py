"""A talker overfitted on six utterances says them again, and its checkpoint has the published layout."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.checkpoint import make_checkpoint
from backend.checkpoint.layout import model_shapes
from backend.checkpoint.text import read_tokenizer
from scripts.train import talker_model, train_talker
from scripts.train import talker_rows as tr
from scripts.train.export_checkpoint import checkpoint_config, write_checkpoint
from scripts.train.import_talker import read_export
from scripts.train.sample_talker import Request, Sampling, corpus_clip, speak
from scripts.train.talker_checkpoint import load_talker
from scripts.train.talker_data import Corpus, Planner
from tests.train.talker_corpus import DEPTH, TEXTS, VOICES, write_corpus, write_tokenizer

OPTIONS = [
    "--hidden",
    "64",
    "--layers",
    "2",
    "--speaker-channels",
    "16",
    "--rows",
    "320",
    "--picks",
    "64",
    "--lr",
    "4e-3",
    "--warm-up",
    "10",
]
PLAIN = [
    "--dropout",
    "0",
    "--noise-group-0",
    "0",
    "--noise-groups",
    "0",
    "--smoothing",
    "0",
    "--pairs",
    "0.2",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("talker")
    write_corpus(root / "corpus")
    write_tokenizer(root / "tokenizer")
    return root


def trainer(folder: Path, out: Path, *more: str) -> train_talker.Trainer:
    places = ["--corpus", str(folder / "corpus"), "--tokenizer", str(folder / "tokenizer"), "--out", str(out)]
    return train_talker.Trainer(
        train_talker.parse([*places, "--seconds", "1000", "--device", "cpu", *OPTIONS, *more])
    )


@pytest.fixture(scope="module", params=["64", "48"], ids=["identity", "projection"])
def trained(folder: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    run = trainer(folder, out, *PLAIN, "--predictor-hidden", request.param, "--max-steps", "200")
    assert run.run() == 0
    return out


def test_an_overfitted_talker_says_its_utterances_again_and_ends(trained: Path, folder: Path) -> None:
    model, _ = load_talker(trained)
    model.eval()
    tokenizer = read_tokenizer(folder / "tokenizer")
    corpus = Corpus([folder / "corpus"], tokenizer, "cpu")
    requests, wanted = [], []
    for number, voice in enumerate(VOICES):
        with torch.inference_mode():
            vector = model.x_vectors(corpus_clip(folder / "corpus", voice)[None])[0]
        for i, text in enumerate(TEXTS):
            u, which = corpus.utterances, number * len(TEXTS) + i
            first = u.frame_start[which]
            codes = corpus.codes[first : first + u.frames[which]].numpy().astype(np.uint16)
            for streamed in (False, True):
                requests.append(Request(tokenizer.encoder().encode(text).ids, vector, streamed, i != 1))
                wanted.append(codes)
    cool = Sampling(0.1, 50, 1.0, 0.1, 50)
    spoken = speak(model, tr.text_ids(tokenizer), requests, cool, max_frames=40)
    assert sum(ended for _, ended in spoken) >= len(spoken) - 2
    assert all((codes[:, DEPTH:] == 0).all() for codes, _ in spoken)
    said = [
        codes.shape == expected.shape and bool((codes[:, :DEPTH] == expected[:, :DEPTH]).mean() > 0.9)
        for (codes, _), expected in zip(spoken, wanted, strict=True)
    ]
    # After so few steps it may still take one voice's speech for the other's.
    for layout in (said[::2], said[1::2]):
        assert sum(layout) >= 4, said


def test_training_leaves_the_unused_code_books_choosing_code_0(trained: Path) -> None:
    model, _ = load_talker(trained)
    assert talker_model.silence_unused_heads(model) > talker_model.UNUSED_LOGIT - 1
    predictor = model.talker.code_predictor
    codes = torch.randint(1, 60, (64, 16))
    codes[:, DEPTH:] = 0
    first = model.talker.model.codec_embedding(codes[:, 0])
    states = predictor.states(torch.randn(64, 64), first, codes, 16)
    for group in range(DEPTH, 16):
        chance = predictor.lm_head[group - 1](states[:, group - 1]).softmax(-1)[:, 0]
        assert chance.min() > 1 - 1e-6


def test_the_checkpoint_has_the_published_tensors(trained: Path, folder: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    model, _ = load_talker(trained)
    make_checkpoint(tmp_path / "tiny", "tiny", "base")
    tokenizer = read_tokenizer(folder / "tokenizer")
    write_checkpoint(tmp_path / "out", model, tokenizer, tmp_path / "tiny" / "speech_tokenizer")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert shapes == model_shapes(checkpoint_config(model.sizes, tokenizer))


def test_a_talker_read_back_from_its_checkpoint_is_the_same(
    trained: Path, folder: Path, tmp_path: Path
) -> None:
    model, _ = load_talker(trained)
    make_checkpoint(tmp_path / "tiny", "tiny", "base")
    tokenizer = read_tokenizer(folder / "tokenizer")
    write_checkpoint(
        tmp_path / "out", model, tokenizer, tmp_path / "tiny" / "speech_tokenizer", dtype=torch.float32
    )
    back = read_export(tmp_path / "out", model.sizes.depth)
    assert back.sizes == model.sizes
    unused = [f".{group}." for group in range(model.sizes.depth - 1, 15)]
    for name, value in model.state_dict().items():
        if not ("code_predictor" in name and any(part in name for part in unused)):
            torch.testing.assert_close(back.state_dict()[name], value)


def test_a_step_that_is_not_a_number_is_left_out(folder: Path, tmp_path: Path) -> None:
    run = trainer(folder, tmp_path)
    run._set_lr(0.0)
    run._fill(plan := run.planner.next())
    run._whole_step(plan.bucket)
    before = [p.detach().clone() for p in run.params]
    run.step_loss.bias[5] = math.nan
    run._whole_step(plan.bucket)
    assert all(torch.equal(a, b) for a, b in zip(before, run.params, strict=True))
    run.step_loss.bias[5] = 0.0
    run._whole_step(plan.bucket)
    assert not all(torch.equal(a, b) for a, b in zip(before, run.params, strict=True))


def test_gradients_are_clipped_to_the_norm(folder: Path, tmp_path: Path) -> None:
    run = trainer(folder, tmp_path)
    weight = run.params[0]
    run.optimizer.zero_grad(set_to_none=True)
    weight.grad = torch.full_like(weight, 10.0)
    run.grad_scale.fill_(10.0)
    run.optimizer.step()
    moment = run.optimizer.state[weight]["exp_avg"]
    assert torch.allclose(moment, torch.full_like(moment, 0.1), atol=1e-6)


def test_every_item_hears_a_clip_of_its_own_voice(folder: Path) -> None:
    corpus = Corpus([folder / "corpus"], read_tokenizer(folder / "tokenizer"), "cpu")
    planner = Planner(corpus, np.arange(6), batch_rows=400, picks=32)
    u = corpus.utterances
    for _ in range(20):
        plan = planner.next()
        shape = planner.shapes[plan.bucket]
        starts = dict(zip(u.frame_start.tolist(), u.voice.tolist(), strict=True))
        voice = [starts[int(first)] for first in plan.items[:, tr.FRAME_START_1]]
        assert plan.clips[plan.items[:, tr.CLIP], 3].tolist() == voice
        rows = tr.build_rows(
            torch.from_numpy(plan.items), shape.rows, corpus.text.long(), tr.TextIds((1, 2, 3), 4, 5, 6)
        )
        assert (rows.target.flatten()[plan.picks] >= 0).all()
        assert (rows.end.sum(1) == 1).all()


def test_a_look_up_s_gradient_is_that_of_an_embedding() -> None:
    table = torch.randn(7, 3, requires_grad=True)
    ids = torch.tensor([[0, 3, 3], [6, 0, 3]])
    weight = torch.randn(2, 3, 3)
    (talker_model.look_up(table, ids) * weight).sum().backward()
    ours, table.grad = table.grad, None
    (torch.nn.functional.embedding(ids, table) * weight).sum().backward()
    assert torch.allclose(ours, table.grad)
