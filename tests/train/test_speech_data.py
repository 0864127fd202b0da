"""The training corpus: its sentences, the alignment through every change of the audio, and packing."""

import lzma
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from scripts.train.corpus import (
    SAMPLE_RATE_HZ,
    ShardWriter,
    UnusableSpeechError,
    Utterance,
    cut_durations,
    frame_levels_db,
    read_rows,
    shards,
    tidy,
)
from scripts.train.corpus_report import faults
from scripts.train.engines import resample, unit_durations
from scripts.train.pack import pack, unpack
from scripts.train.texts import Texts, bare, evaluation_sentences, ordinal

WORDS = {
    "NN": "wheel",
    "NNS": "wheels",
    "JJ": "plain",
    "JJR": "plainer",
    "RB": "gladly",
    "VBG": "rowing",
    "NNP": "Ada",
}


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A small pool; every other found sentence is one that is held out."""
    found = [("example", text) for text in evaluation_sentences()]
    found += [("example", f"The {n} boats left." if n % 2 else f"We saw {n} boats.") for n in range(60)]
    found += [("gloss", "To row is to move a boat."), ("speech", "We shall build more boats.")]
    path = tmp_path / "sentences.txt.xz"
    path.write_bytes(lzma.compress("\n".join("\t".join(row) for row in [*found, *WORDS.items()]).encode()))
    return path


def speech(n_samples: int, silence: int, durations: list[int], level: float = 0.05) -> Utterance:
    """A hum with ``silence`` samples of nothing at each end."""
    samples = level * np.sin(np.arange(n_samples) * 0.05).astype(np.float32)
    samples[:silence] = samples[n_samples - silence :] = 0
    return Utterance("hum", "Hum.", "_" + "m" * (len(durations) - 2) + "_", durations, samples)


def test_the_same_seed_gives_the_same_sentences_and_another_seed_others(pool: Path) -> None:
    first, again, other = (list(islice(Texts(seed, pool), 300)) for seed in (7, 7, 8))
    assert first == again
    assert len(set(first) & set(other)) < 200


def test_held_out_sentences_are_never_given(pool: Path) -> None:
    held_out = {bare(text) for text in evaluation_sentences()}
    given = list(islice(Texts(1, pool), 3000))
    assert len(held_out) == 60
    assert not held_out & {bare(text) for text in given}
    assert any("boats" in text for text in given)


def test_every_template_fills_to_a_plain_sentence(pool: Path) -> None:
    texts = Texts(1, pool)
    for kind, templates in texts.templates.items():
        assert templates, kind
        for template in templates:
            assert re.fullmatch(r"[A-Z0-9$][A-Za-z0-9 ,;:'.$-]*[.?!]", texts.fill(template)), template


@pytest.mark.parametrize(
    ("n", "text"), [(1, "1st"), (12, "12th"), (22, "22nd"), (93, "93rd"), (111, "111th")]
)
def test_ordinals_take_the_right_ending(n: int, text: str) -> None:
    assert ordinal(n) == text


def test_cutting_takes_from_both_ends_across_phones() -> None:
    assert cut_durations([10, 20, 30, 40], 15, 45) == [0, 15, 25, 0]


def test_tidy_trims_the_silence_levels_the_speech_and_keeps_the_durations_true() -> None:
    tidied = tidy(speech(96_000, 24_000, [24_000, 24_000, 24_000, 24_000]), head_ms=100, tail_ms=50)
    assert sum(tidied.durations) == len(tidied.samples) == 48_000 + 2400 + 1200
    assert tidied.durations == [2400, 24_000, 24_000, 1200]
    levels = frame_levels_db(tidied.samples)
    assert np.mean(levels[levels > -40]) == pytest.approx(-23, abs=0.3)


def test_tidy_keeps_the_peak_of_a_spiky_sound_below_full_scale() -> None:
    spiky = speech(48_000, 4800, [24_000, 24_000], level=0.001)
    spiky.samples[10_000:40_000:1000] = 0.5
    assert np.abs(tidy(spiky, 100, 100).samples).max() < 0.9


def test_tidy_makes_a_very_short_utterance_as_long_as_the_shortest() -> None:
    tidied = tidy(speech(9600, 2400, [2400, 4800, 2400]), 60, 60)
    assert sum(tidied.durations) == len(tidied.samples) == 0.8 * SAMPLE_RATE_HZ


@pytest.mark.parametrize(("n_samples", "level"), [(48_000, 0.0), (11 * 24_000, 0.05)])
def test_silent_and_overlong_speech_is_refused(n_samples: int, level: float) -> None:
    with pytest.raises(UnusableSpeechError):
        tidy(speech(n_samples, 0, [n_samples], level), 60, 60)


def test_durations_that_do_not_fit_the_audio_are_refused() -> None:
    assert unit_durations(np.array([[2.0, 0.0, 3.0]]), 600, 3600) == [1200, 600, 1800]
    with pytest.raises(ValueError, match="the durations sum to 3000"):
        unit_durations(np.array([[2.0, 3.0]]), 600, 3600)


def test_resampling_scales_the_durations_with_the_audio() -> None:
    played, durations = resample(np.zeros(24_000, np.float32), [6000, 12_000, 6000], 1.25)
    assert sum(durations) == len(played) == 19_200
    assert durations == [4800, 9600, 4800]


def test_a_shard_shows_only_when_it_is_whole(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "a-0")
    writer.add(speech(24_000, 0, [24_000]))
    assert not list(shards(tmp_path))
    writer.close()
    assert [path.name for path in shards(tmp_path)] == ["a-0.pcm"]


def test_packing_and_unpacking_gives_the_rows_and_nearly_the_samples(tmp_path: Path) -> None:
    corpus, packed, unpacked = (tmp_path / name for name in ("corpus", "packed", "unpacked"))
    for name in ("a-0", "a-1"):
        writer = ShardWriter(corpus, name)
        for n_samples in (24_000, 30_011):
            writer.add(speech(n_samples, 1000, [1000, n_samples - 2000, 1000]))
        writer.close()
    assert len(pack(corpus, packed, part_bytes=1)) == 2
    assert len(pack(corpus, packed, part_bytes=1)) == 2
    assert unpack(sorted(packed.iterdir()), unpacked) == 2 * 54_011
    for path in shards(corpus):
        assert read_rows(unpacked / path.name) == read_rows(path)
        before, after = (np.fromfile(p, "<i2").astype(float) for p in (path, unpacked / path.name))
        assert len(before) == len(after) == 54_011
        assert np.corrcoef(before, after)[0, 1] > 0.98


def test_the_report_finds_what_is_wrong_with_a_row() -> None:
    row = {"voice": "heart", "text": "Hum.", "phones": "_m_", "durations": [1000, 23_000, 1000], "n": 25_000}
    samples = np.zeros(25_000, np.float32)
    assert faults(row, samples, set()) == []
    assert faults(row | {"durations": [1000, 1000, 1000]}, samples, set()) == [
        "durations do not sum to the samples"
    ]
    assert faults(row | {"voice": "am_puck+af_bella"}, samples, set()) == ["voice is held out"]
    assert faults(row, samples + 1, {"hum"}) == ["clips", "sentence is held out"]
