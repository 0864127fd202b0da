# mypy: disable-error-code=no-untyped-def
"""The stages in Triton: five launches a layer, four for the codes. `plain` is the twin of each.

A frame at batch 1 reads every weight 15 times for a few rows of arithmetic, so all that counts is
to keep memory busy and launches few. What a row comes to does not depend on the others: rows are
always taken in blocks of 16, and every sum runs in the same order for any batch.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.noise import ROUNDS
from backend.code_predictor.shape import PredictorShape
from backend.code_predictor.weights import PredictorWeights

# The least rows a tensor core takes at once.
ROW_BLOCK = 16
# Triton's interpreter multiplies the bits of bfloat16 as if they were integers, so it gets float32.
INTERPRETED = bool(triton.knobs.runtime.interpret)


@dataclass(frozen=True)
class Tiles:
    """How a matrix product is cut up: outputs of one program, inputs read at a time, warps."""

    outputs: int
    inputs: int
    warps: int


@dataclass
class Launch:
    """Tuning, the same for all batch sizes so that a request's codes do not depend on its company."""

    wide: Tiles = Tiles(outputs=16, inputs=256, warps=4)  # qkv and heads
    gated: Tiles = Tiles(outputs=16, inputs=256, warps=4)
    narrow: Tiles = Tiles(outputs=8, inputs=512, warps=4)  # attention and MLP outputs
    # Programmatic dependent launch: a kernel starts, and reads its first weights, while the one
    # before it ends.
    overlap: bool = False


launch = Launch()


def check_shape(shape: PredictorShape) -> None:
    """Raises ValueError for widths these kernels are not written for."""
    for name, width in (("hidden", shape.hidden), ("mlp", shape.mlp), ("talker", shape.talker_hidden)):
        if width % ROW_BLOCK:
            raise ValueError(f"The {name} width, {width}, is no multiple of {ROW_BLOCK}.")
    if shape.head_dim & (shape.head_dim - 1) or shape.heads % shape.kv_heads:
        raise ValueError("Heads must be a power of two wide, and shared evenly.")


# Not specialised on what differs from call to call: each kind would be compiled by itself.
@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x, weight, norm, bias, out,
    rows, outputs, width: tl.constexpr, eps,
    NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr, OVERLAP: tl.constexpr,
    WIDEN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """out = x @ weight.T for x [rows, width] and weight [outputs, width].

    NORM takes RMSNorm(x) instead; its scale is known once the row is read, and applied to the sums.
    BIAS and ADD add to it, a vector or what `out` holds. GATED has twice the weight rows, all
    gates before all ups, and gives SiLU(gate) * up.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    valid_row, valid_column = row < rows, column < outputs
    places = weight + column[None, :] * width + k[:, None]
    # Weights are nobody's result: the first can be on their way before the kernel ahead is done.
    ahead = tl.load(places, mask=valid_column[None, :], other=0.0)
    ahead_up = ahead
    if GATED:
        ahead_up = tl.load(places + outputs * width, mask=valid_column[None, :], other=0.0)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    total_up = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    square = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, width, INPUTS):
        tile = ahead
        tile_up = ahead_up
        more = (start + INPUTS < width) & valid_column[None, :]
        ahead = tl.load(places + start + INPUTS, mask=more, other=0.0)
        if GATED:
            ahead_up = tl.load(places + outputs * width + start + INPUTS, mask=more, other=0.0)
        value = tl.load(x + row[:, None] * width + start + k[None, :], mask=valid_row[:, None], other=0.0)
        if NORM:
            value = value.to(tl.float32)
            square += tl.sum(value * value, axis=1)
            value = value * tl.load(norm + start + k)[None, :].to(tl.float32)
        value = value.to(tile.dtype)
        if WIDEN:
            value = value.to(tl.float32)
            tile = tile.to(tl.float32)
            tile_up = tile_up.to(tl.float32)
        total = tl.dot(value, tile, total, input_precision="ieee")
        if GATED:
            total_up = tl.dot(value, tile_up, total_up, input_precision="ieee")
    if NORM:
        scale = tl.rsqrt(square / width + eps)[:, None]
        total *= scale
        total_up *= scale
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * total_up
    if BIAS:
        total += tl.load(bias + column, mask=valid_column, other=0.0)[None, :].to(tl.float32)
    target = out + row[:, None] * outputs + column[None, :]
    valid = valid_row[:, None] & valid_column[None, :]
    if ADD:
        total += tl.load(target, mask=valid, other=0.0)
    tl.store(target, total.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _half_norm(first, second, weight, half, k, eps, HEAD: tl.constexpr):
    """RMSNorm over heads held as two halves [heads, head_dim / 2]."""
    square = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    scale = tl.rsqrt(square / HEAD + eps)[:, None]
    first = first * scale * tl.load(weight + k)[None, :].to(tl.float32)
    second = second * scale * tl.load(weight + half + k)[None, :].to(tl.float32)
    return first, second


@triton.jit(do_not_specialize=["batch", "start"])
def _attend_kernel(
    qkv, q_norm, k_norm, cos, sin, keys, values, out,
    batch, kv_heads, positions, start, scaling, eps,
    COUNT: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, POSITIONS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One request and one key head with its GROUP query heads: norm, rotate, cache, attend.

    A head is held as two halves, since rotation turns one against the other.
    """
    request = tl.program_id(0)
    kv = tl.program_id(1)
    HALF: tl.constexpr = HEAD // 2
    k = tl.arange(0, HALF)
    heads = tl.arange(0, GROUP)
    place = tl.arange(0, POSITIONS)
    cache = (request * kv_heads + kv) * positions * HEAD
    at = cache + place[:, None] * HEAD + k[None, :]
    row_width = (GROUP + 2) * kv_heads * HEAD
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    cached = (place < start)[:, None]
    key_first = tl.load(keys + at, mask=cached, other=0.0).to(tl.float32)
    key_second = tl.load(keys + at + HALF, mask=cached, other=0.0).to(tl.float32)
    value_first = tl.load(values + at, mask=cached, other=0.0).to(tl.float32)
    value_second = tl.load(values + at + HALF, mask=cached, other=0.0).to(tl.float32)
    for new in tl.static_range(COUNT):
        position = start + new
        row = qkv + (new * batch + request) * row_width
        turn_cos = tl.load(cos + position * HALF + k)[None, :]
        turn_sin = tl.load(sin + position * HALF + k)[None, :]
        # The new key, as [1, half]; rounded as the cache holds it.
        one = (GROUP * kv_heads + kv) * HEAD + tl.zeros((1,), tl.int32)[:, None] + k[None, :]
        first = tl.load(row + one).to(tl.float32)
        second = tl.load(row + one + HALF).to(tl.float32)
        first, second = _half_norm(first, second, k_norm, HALF, k, eps, HEAD)
        key_a = (first * turn_cos - second * turn_sin).to(keys.dtype.element_ty)
        key_b = (second * turn_cos + first * turn_sin).to(keys.dtype.element_ty)
        value_a = tl.load(row + one + kv_heads * HEAD)
        value_b = tl.load(row + one + kv_heads * HEAD + HALF)
        slot = cache + position * HEAD + tl.zeros((1,), tl.int32)[:, None] + k[None, :]
        tl.store(keys + slot, key_a)
        tl.store(keys + slot + HALF, key_b)
        tl.store(values + slot, value_a)
        tl.store(values + slot + HALF, value_b)
        here = (place == position)[:, None]
        key_first = tl.where(here, key_a.to(tl.float32), key_first)
        key_second = tl.where(here, key_b.to(tl.float32), key_second)
        value_first = tl.where(here, value_a.to(tl.float32), value_first)
        value_second = tl.where(here, value_b.to(tl.float32), value_second)

        head_at = (kv * GROUP + heads)[:, None] * HEAD + k[None, :]
        first = tl.load(row + head_at).to(tl.float32)
        second = tl.load(row + head_at + HALF).to(tl.float32)
        first, second = _half_norm(first, second, q_norm, HALF, k, eps, HEAD)
        query_a = (first * turn_cos - second * turn_sin)[:, None, :]
        query_b = (second * turn_cos + first * turn_sin)[:, None, :]
        scores = tl.sum(query_a * key_first[None, :, :] + query_b * key_second[None, :, :], axis=2) * scaling
        scores = tl.where((place <= position)[None, :], scores, float("-inf"))
        share = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        share = (share / tl.sum(share, axis=1)[:, None])[:, :, None]
        target = out + (new * batch + request) * GROUP * kv_heads * HEAD + head_at
        tl.store(target, tl.sum(share * value_first[None, :, :], axis=1).to(out.dtype.element_ty))
        tl.store(target + HALF, tl.sum(share * value_second[None, :, :], axis=1).to(out.dtype.element_ty))


@triton.jit
def _gumbel(seed, frame, group, BLOCK: tl.constexpr, PHILOX_ROUNDS: tl.constexpr):
    """As `noise.gumbel`, for the first BLOCK codes."""
    block = tl.arange(0, BLOCK // 4)
    zero = block * 0
    w0, w1, w2, w3 = tl.philox(seed, block, zero + group, zero + frame, zero, PHILOX_ROUNDS)
    # Side by side as code % 4 = 0, 1, 2, 3.
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BLOCK,))
    uniform = ((words >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform))


@triton.jit(do_not_specialize=["group"])
def _draw_kernel(
    logits, seeds, frames, inverse_temperatures, noises, top_ks, codes, table, stream,
    group, groups, code_count, hidden,
    BLOCK: tl.constexpr, HIDDEN: tl.constexpr, PHILOX_ROUNDS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One request's code, and its table row as the stream.

    The largest noisy logit wins if fewer than top_k logits are above its own. If not, nothing that
    is no larger can win either, so those drop out and the next is tried: rarely more than twice,
    where sorting for the k-th largest would cost the same every time.
    """
    request = tl.program_id(0)
    code = tl.arange(0, BLOCK)
    seed = tl.load(seeds + request)
    frame = tl.load(frames + request)
    noise = tl.load(noises + request)
    top_k = tl.load(top_ks + request)
    inverse_temperature = tl.load(inverse_temperatures + request)
    random = _gumbel(seed, frame, group, BLOCK, PHILOX_ROUNDS)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    plain = tl.load(logits + request * code_count + code, mask=code < code_count, other=float("-inf"))
    noisy = plain * inverse_temperature + noise * random
    noisy = tl.where(code < code_count, noisy, float("-inf"))
    winner = tl.argmax(noisy, axis=0)
    level = tl.max(tl.where(code == winner, plain, float("-inf")), axis=0)
    above = tl.sum((plain > level).to(tl.int32), axis=0)
    while above >= top_k:
        noisy = tl.where(plain > level, noisy, float("-inf"))
        winner = tl.argmax(noisy, axis=0)
        level = tl.max(tl.where(code == winner, plain, float("-inf")), axis=0)
        above = tl.sum((plain > level).to(tl.int32), axis=0)
    tl.store(codes + request * groups + group, winner.to(tl.int64))
    k = tl.arange(0, HIDDEN)
    value = tl.load(table + winner * hidden + k, mask=k < hidden, other=0.0)
    tl.store(stream + request * hidden + k, value.to(tl.float32), mask=k < hidden)


@triton.jit
def _finish_kernel(
    codes, embeddings, code0_embeds, text_step, out,
    groups, code_count, width,
    WIDTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """out [batch, width] = every code's embedding + text_step, for one request."""
    request = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    inside = k < width
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    first = tl.load(codes + request * groups)
    real = (first >= 0) & (first < code_count)
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    for group in range(1, groups):
        code = tl.where(real, tl.load(codes + request * groups + group), 0)
        row = (group - 1) * code_count + code
        total += tl.load(embeddings + row * width + k, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(code0_embeds + request * width + k, mask=inside, other=0.0).to(tl.float32)
    text = tl.load(text_step + request * width + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + request * width + k, (given + total + text).to(out.dtype.element_ty), mask=inside)


def project(inputs: Tensor, weights: PredictorWeights, stream: Tensor) -> None:
    if weights.projection is None:
        stream.copy_(inputs)
    else:
        _linear(inputs, weights.projection, stream, launch.wide, bias=weights.projection_bias)


def norm_linear(stream: Tensor, norm: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
    _linear(stream, weight, out, launch.wide, norm=norm, eps=eps)


def linear_add(x: Tensor, weight: Tensor, stream: Tensor) -> None:
    _linear(x, weight, stream, launch.narrow, ADD=True)


def gated_mlp(stream: Tensor, norm: Tensor, weight: Tensor, out: Tensor, eps: float) -> None:
    _linear(stream, weight, out, launch.gated, norm=norm, eps=eps, GATED=True)


def attend(buffers: FrameBuffers, weights: PredictorWeights, layer: int, start: int, count: int) -> None:
    s, b, ready = weights.shape, buffers, weights.prepared
    _attend_kernel[(b.batch, s.kv_heads)](
        b.qkv,
        weights.q_norm[layer],
        weights.k_norm[layer],
        ready.cos,
        ready.sin,
        b.keys[layer],
        b.values[layer],
        b.attended,
        b.batch,
        s.kv_heads,
        s.positions,
        start,
        s.head_dim**-0.5,
        s.norm_eps,
        COUNT=count,
        GROUP=s.heads // s.kv_heads,
        HEAD=s.head_dim,
        POSITIONS=triton.next_power_of_2(s.positions),
        **_overlap(),
    )


def draw(buffers: FrameBuffers, weights: PredictorWeights, group: int) -> None:
    s, b = weights.shape, buffers
    _draw_kernel[(b.batch,)](
        b.logits,
        b.seed,
        b.frame,
        b.inverse_temperature,
        b.noise,
        b.top_k,
        b.codes,
        weights.prepared.tables[group - 1],
        b.stream,
        group,
        s.groups,
        s.codes,
        s.hidden,
        BLOCK=triton.next_power_of_2(s.codes),
        HIDDEN=triton.next_power_of_2(s.hidden),
        PHILOX_ROUNDS=ROUNDS,
        **_overlap(),
    )


def finish(buffers: FrameBuffers, weights: PredictorWeights) -> None:
    s, b = weights.shape, buffers
    _finish_kernel[(b.batch,)](
        b.codes,
        weights.embeddings,
        b.inputs[b.batch :],
        b.text_step,
        b.next_embeds,
        s.groups,
        s.codes,
        s.talker_hidden,
        WIDTH=triton.next_power_of_2(s.talker_hidden),
        **_overlap(),
    )
    b.codes.mul_((b.codes[:, :1] >= 0) & (b.codes[:, :1] < s.codes))


def _linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    tiles: Tiles,
    *,
    norm: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 0.0,
    **kinds: bool,
) -> None:
    rows, width = x.shape
    outputs = out.shape[1]
    grid = (triton.cdiv(outputs, tiles.outputs), triton.cdiv(rows, ROW_BLOCK))
    _linear_kernel[grid](
        x,
        weight,
        x if norm is None else norm,
        x if bias is None else bias,
        out,
        rows,
        outputs,
        width,
        eps,
        NORM=norm is not None,
        BIAS=bias is not None,
        ADD=kinds.get("ADD", False),
        GATED=kinds.get("GATED", False),
        WIDEN=INTERPRETED,
        ROWS=ROW_BLOCK,
        OUTPUTS=tiles.outputs,
        INPUTS=_dividing(width, tiles.inputs),
        num_warps=tiles.warps,
        **_overlap(),
    )


def _dividing(width: int, most: int) -> int:
    """The largest power of two up to `most` that divides `width`."""
    return min(width & -width, most)


def _overlap() -> dict[str, Any]:
    return {"OVERLAP": launch.overlap} | ({"launch_pdl": True} if launch.overlap else {})
