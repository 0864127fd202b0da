import pytest

from backend.memory_budget import (
    GIB,
    OUTSIDE_BYTES,
    MemoryBudgetError,
    kv_cache_bytes,
    memory_fractions,
    split_cores,
    talker_kv_cache_bytes,
)

# 28 layers, 8 key/value heads of 128, bfloat16: the talker of both published sizes.
KV_BYTES_PER_TOKEN = 28 * 8 * 128 * 2 * 2


def fractions(
    card_gib: float,
    weights_gib: float = 4.5,
    max_num_seqs: int = 16,
    given: dict[int, float] | None = None,
) -> dict[int, float]:
    return memory_fractions(
        int(card_gib * GIB),
        talker_bytes=int(weights_gib * GIB),
        decoder_bytes=int(0.4 * GIB),
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        max_model_len=4096,
        max_num_seqs=max_num_seqs,
        given=given,
    )


@pytest.mark.parametrize(("stage", "share"), [(0, 0.5), (1, 0.5), (0, 0.6), (1, 0.25)])
def test_a_share_given_by_hand_is_kept_and_leaves_room_for_the_other_stage(stage: int, share: float) -> None:
    shares = fractions(22, max_num_seqs=64, given={stage: share})
    assert shares[stage] == share
    assert sum(shares.values()) <= 1
    assert shares[1 - stage] >= min(fractions(22, max_num_seqs=1)[1 - stage], 0.1)


@pytest.mark.parametrize(("stage", "share"), [(0, 0.2), (0, 0.95), (1, 0.05), (1, 0.8)])
def test_a_share_given_by_hand_that_does_not_fit_is_refused_with_what_would(stage: int, share: float) -> None:
    with pytest.raises(MemoryBudgetError, match=rf"of stage {stage} must be from .* not {share}") as refused:
        fractions(22, given={stage: share})
    least, most = (
        float(part) for part in str(refused.value).split("must be from ")[1].split(",")[0].split(" to ")
    )
    assert fractions(22, given={stage: least})[stage] == least
    assert sum(fractions(22, given={stage: most}).values()) <= 1


def test_a_large_card_is_not_taken_whole() -> None:
    assert sum(fractions(139).values()) < 0.1


@pytest.mark.parametrize("card_gib", [16, 22, 44, 80, 139])
def test_every_card_keeps_room_for_graphs_and_contexts(card_gib: float) -> None:
    assert sum(fractions(card_gib, max_num_seqs=64).values()) <= 1 - OUTSIDE_BYTES / (card_gib * GIB)


def test_more_requests_take_more_memory_until_the_card_is_full() -> None:
    few, many = fractions(44, max_num_seqs=4), fractions(44, max_num_seqs=64)
    assert few[0] < many[0]
    assert few[1] == many[1]
    assert fractions(16, max_num_seqs=64) == fractions(16, max_num_seqs=640)


def test_one_request_of_full_length_always_fits() -> None:
    taken = fractions(139, weights_gib=0, max_num_seqs=1)[0] * 139 * GIB
    assert taken >= KV_BYTES_PER_TOKEN * 4096


def test_a_card_that_is_too_small_is_told_what_is_missing() -> None:
    with pytest.raises(MemoryBudgetError) as refused:
        fractions(8)
    needed_gib = float(str(refused.value).partition("at least ")[2].split(" GiB")[0])
    assert "8.0 GiB" in str(refused.value)
    assert fractions(needed_gib + 0.1)
    with pytest.raises(MemoryBudgetError):
        fractions(needed_gib - 0.1)


def test_a_cpu_holds_every_request_at_full_length() -> None:
    sizes = kv_cache_bytes(kv_bytes_per_token=2048, max_model_len=4096, max_num_seqs=4)
    assert 2048 * 4096 * 4 <= sizes[0] < 2 * 2048 * 4096 * 4
    assert 0 < sizes[1] <= 16 * 1024**2


@pytest.mark.parametrize(
    ("cores", "talker", "decoder"),
    [([0, 1], "0", "1"), ([4, 6, 7], "4,6", "7"), ([0, 1, 2, 3], "0,1", "2,3"), ([5], "nobind", "nobind")],
)
def test_each_stage_has_cores_of_its_own(cores: list[int], talker: str, decoder: str) -> None:
    assert split_cores(cores) == {
        0: {"VLLM_CPU_OMP_THREADS_BIND": talker},
        1: {"VLLM_CPU_OMP_THREADS_BIND": decoder},
    }


def test_talker_cache_holds_a_longest_request_and_fits_in_the_talkers_share() -> None:
    for max_num_seqs in (1, 4, 16):
        share = fractions(80, max_num_seqs=max_num_seqs)[0]
        cache = talker_kv_cache_bytes(share, 80 * GIB, int(4.5 * GIB))
        assert KV_BYTES_PER_TOKEN * 4096 < cache < share * 80 * GIB - 4.5 * GIB
