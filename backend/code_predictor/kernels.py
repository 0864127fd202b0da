# mypy: disable-error-code=no-untyped-def
"""The stages in Triton: five launches a layer, four for the codes. `plain` is the twin of each.

A frame at batch 1 reads every weight 15 times for a few rows of arithmetic, so all that counts is
to keep memory busy, launches few and each kernel short from its first input to its last output. What
a row comes to does not depend on the others: each is summed up by itself, in the same order in any batch.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.noise import ROUNDS
from backend.code_predictor.shape import PredictorShape
from backend.code_predictor.weights import PredictorWeights

# What one warp reads at once: 16 bytes of bfloat16 a thread.
LANES = 256


@dataclass
class Launch:
    """Tuning, the same for all batch sizes so that a request's codes do not depend on its company."""

    # Outputs of one program: more share what is read of x, and take registers.
    wide: int = 4  # qkv and heads
    gated: int = 2
    narrow: int = 1  # attention and MLP outputs
    attend_warps: int = 1
    draw_warps: int = 4
    finish_warps: int = 8
    # Programmatic dependent launch, where the card has it: a kernel starts, and reads its weights,
    # while the one before it ends.
    overlap: bool = True


launch = Launch()


def check_shape(shape: PredictorShape) -> None:
    """Raises ValueError for widths these kernels are not written for."""
    if shape.head_dim & (shape.head_dim - 1) or shape.heads % shape.kv_heads:
        raise ValueError("Heads must be a power of two wide, and shared evenly.")


@triton.jit
def _after_those_before(OVERLAP: tl.constexpr):
    """Results of the kernel ahead may be read only after this, those of earlier ones before it too."""
    if OVERLAP:
        # In this order, so that the next kernel starts only once all but this one are done.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _inputs(start, INPUTS: tl.constexpr, LANES: tl.constexpr):
    """INPUTS places from `start`, as [INPUTS / LANES, 1, LANES]: a warp reads LANES side by side."""
    return start + tl.arange(0, INPUTS // LANES)[:, None, None] * LANES + tl.arange(0, LANES)[None, None, :]


@triton.jit
def _weights(weight, norm, column, valid, k, width, NORM: tl.constexpr):
    """[parts, OUTPUTS, LANES] of weight [outputs, width] in float32, times the norm's own weight."""
    tile = tl.load(
        weight + column[None, :, None] * width + k, mask=valid[None, :, None] & (k < width), other=0.0
    )
    tile = tile.to(tl.float32)
    if NORM:
        tile *= tl.load(norm + k, mask=k < width, other=0.0).to(tl.float32)
    return tile


@triton.jit
def _row(x, row, rows, k, width):
    """One row of x [rows, width] in float32, [parts, 1, LANES]; zeros beyond the last."""
    return tl.load(x + row * width + k, mask=(k < width) & (row < rows), other=0.0).to(tl.float32)


# Not specialised on what differs from call to call: each kind would be compiled by itself.
@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x, weight, norm, bias, out,
    rows, outputs, width: tl.constexpr, eps,
    NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr, OVERLAP: tl.constexpr,
    FIRST: tl.constexpr, SECOND: tl.constexpr, LANES: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """out = x @ weight.T for x [rows, width] and weight [outputs, width].

    NORM takes RMSNorm(x) instead; its scale is known once the row is read, and applied to the sums.
    BIAS and ADD add to it, a vector or what `out` holds. GATED has twice the weight rows, all
    gates before all ups, and gives SiLU(gate) * up.

    A program is one warp with OUTPUTS rows of weights in its registers, FIRST + SECOND wide, and sums
    up by itself. A tensor core would want the weights by way of shared memory, and more warps would
    have to meet there: for a few rows of x either takes longer.
    """
    column = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    valid = column < outputs
    k = _inputs(0, FIRST, LANES)
    # Weights are nobody's result: they can be on their way before the kernel ahead is done.
    tile = _weights(weight, norm, column, valid, k, width, NORM)
    if GATED:
        tile_up = _weights(weight + outputs * width, norm, column, valid, k, width, NORM)
    if SECOND > 0:
        k2 = _inputs(FIRST, SECOND, LANES)
        tile2 = _weights(weight, norm, column, valid, k2, width, NORM)
        if GATED:
            tile2_up = _weights(weight + outputs * width, norm, column, valid, k2, width, NORM)
    _after_those_before(OVERLAP)
    ahead = _row(x, 0, rows, k, width)
    if SECOND > 0:
        ahead2 = _row(x, 0, rows, k2, width)
    for row in range(rows):
        value = ahead
        ahead = _row(x, row + 1, rows, k, width)
        total = tl.sum(tile * value, axis=0)
        if NORM:
            square = tl.sum(value * value, axis=0)
        if GATED:
            total_up = tl.sum(tile_up * value, axis=0)
        if SECOND > 0:
            value = ahead2
            ahead2 = _row(x, row + 1, rows, k2, width)
            total += tl.sum(tile2 * value, axis=0)
            if NORM:
                square += tl.sum(value * value, axis=0)
            if GATED:
                total_up += tl.sum(tile2_up * value, axis=0)
        result = tl.sum(total, axis=1)
        if NORM:
            scale = tl.rsqrt(tl.sum(square, axis=1) / width + eps)
            result *= scale
        if GATED:
            up = tl.sum(total_up, axis=1)
            if NORM:
                up *= scale
            result = result / (1.0 + tl.exp(-result)) * up
        if BIAS:
            result += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
        target = out + row * outputs + column
        if ADD:
            result += tl.load(target, mask=valid, other=0.0)
        tl.store(target, result.to(out.dtype.element_ty), mask=valid)


@triton.jit
def _normed_and_turned(row, weight, cos, sin, k, eps, HEAD: tl.constexpr):
    """RMSNorm and rotation of one head, as two halves [HEAD / 2]: rotation turns one against the other."""
    HALF: tl.constexpr = HEAD // 2
    first = tl.load(row + k).to(tl.float32)
    second = tl.load(row + HALF + k).to(tl.float32)
    scale = tl.rsqrt(tl.sum(first * first + second * second, axis=0) / HEAD + eps)
    first = first * scale * tl.load(weight + k).to(tl.float32)
    second = second * scale * tl.load(weight + HALF + k).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit(do_not_specialize=["batch", "start", "count"])
def _attend_kernel(
    qkv, q_norm, k_norm, cos, sin, keys, values, out,
    batch, kv_heads, positions, start, count, scaling, eps,
    GROUP: tl.constexpr, HEAD: tl.constexpr, POSITIONS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One request and one query head: norm, rotate, cache, attend.

    The GROUP query heads of a key head each make its new key, which takes less than sharing it, and
    write the same into the cache.
    """
    request = tl.program_id(0)
    head = tl.program_id(1)
    kv = head // GROUP
    HALF: tl.constexpr = HEAD // 2
    k = tl.arange(0, HALF)
    place = tl.arange(0, POSITIONS)
    cache = (request * kv_heads + kv) * positions * HEAD
    at = cache + place[:, None] * HEAD + k[None, :]
    row_width = (GROUP + 2) * kv_heads * HEAD
    # Older positions were written by kernels long done.
    cached = (place < start)[:, None]
    key_first = tl.load(keys + at, mask=cached, other=0.0).to(tl.float32)
    key_second = tl.load(keys + at + HALF, mask=cached, other=0.0).to(tl.float32)
    value_first = tl.load(values + at, mask=cached, other=0.0).to(tl.float32)
    value_second = tl.load(values + at + HALF, mask=cached, other=0.0).to(tl.float32)
    _after_those_before(OVERLAP)
    for new in range(count):
        position = start + new
        row = qkv + (new * batch + request) * row_width
        turn_cos = tl.load(cos + position * HALF + k)
        turn_sin = tl.load(sin + position * HALF + k)
        key_row = row + (GROUP * kv_heads + kv) * HEAD
        key_a, key_b = _normed_and_turned(key_row, k_norm, turn_cos, turn_sin, k, eps, HEAD)
        # Rounded as the cache holds it.
        key_a = key_a.to(keys.dtype.element_ty)
        key_b = key_b.to(keys.dtype.element_ty)
        value_a = tl.load(key_row + kv_heads * HEAD + k)
        value_b = tl.load(key_row + kv_heads * HEAD + HALF + k)
        slot = cache + position * HEAD + k
        tl.store(keys + slot, key_a)
        tl.store(keys + slot + HALF, key_b)
        tl.store(values + slot, value_a)
        tl.store(values + slot + HALF, value_b)
        here = (place == position)[:, None]
        key_first = tl.where(here, key_a.to(tl.float32)[None, :], key_first)
        key_second = tl.where(here, key_b.to(tl.float32)[None, :], key_second)
        value_first = tl.where(here, value_a.to(tl.float32)[None, :], value_first)
        value_second = tl.where(here, value_b.to(tl.float32)[None, :], value_second)

        query_a, query_b = _normed_and_turned(row + head * HEAD, q_norm, turn_cos, turn_sin, k, eps, HEAD)
        scores = tl.sum(query_a[None, :] * key_first + query_b[None, :] * key_second, axis=1) * scaling
        scores = tl.where(place <= position, scores, float("-inf"))
        share = tl.exp(scores - tl.max(scores, axis=0))
        share = (share / tl.sum(share, axis=0))[:, None]
        target = out + ((new * batch + request) * GROUP * kv_heads + head) * HEAD + k
        tl.store(target, tl.sum(share * value_first, axis=0).to(out.dtype.element_ty))
        tl.store(target + HALF, tl.sum(share * value_second, axis=0).to(out.dtype.element_ty))


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
    noise = tl.load(noises + request)
    top_k = tl.load(top_ks + request)
    inverse_temperature = tl.load(inverse_temperatures + request)
    random = _gumbel(tl.load(seeds + request), tl.load(frames + request), group, BLOCK, PHILOX_ROUNDS)
    _after_those_before(OVERLAP)
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
    code_count, width, GROUPS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """out [batch, width] = every code's embedding + text_step, for one request.

    Without a real code 0 the row's codes become zeros.
    """
    request = tl.program_id(0)
    k = tl.arange(0, WIDTH)
    inside = k < width
    _after_those_before(OVERLAP)
    first = tl.load(codes + request * GROUPS)
    real = (first >= 0) & (first < code_count)
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    # Unrolled, so that all rows are on their way at once.
    for group in tl.static_range(1, GROUPS):
        code = tl.where(real, tl.load(codes + request * GROUPS + group), 0)
        row = (group - 1) * code_count + code
        total += tl.load(embeddings + row * width + k, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(code0_embeds + request * width + k, mask=inside, other=0.0).to(tl.float32)
    text = tl.load(text_step + request * width + k, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + request * width + k, (given + total + text).to(out.dtype.element_ty), mask=inside)
    # All codes above must have been read.
    tl.debug_barrier()
    every = tl.arange(0, BLOCK)
    there = (every < GROUPS) & (real == 0)
    tl.store(codes + request * GROUPS + every, every.to(tl.int64) * 0, mask=there)


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
    _attend_kernel[(b.batch, s.heads)](
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
        count,
        s.head_dim**-0.5,
        s.norm_eps,
        GROUP=s.heads // s.kv_heads,
        HEAD=s.head_dim,
        POSITIONS=triton.next_power_of_2(s.positions),
        num_warps=launch.attend_warps,
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
        num_warps=launch.draw_warps,
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
        s.codes,
        s.talker_hidden,
        GROUPS=s.groups,
        BLOCK=triton.next_power_of_2(s.groups),
        WIDTH=triton.next_power_of_2(s.talker_hidden),
        num_warps=launch.finish_warps,
        **_overlap(),
    )


def _linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    outputs_each: int,
    *,
    norm: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 0.0,
    **kinds: bool,
) -> None:
    rows, width = x.shape
    outputs = out.shape[1]
    first = 1 << (width.bit_length() - 1)
    second = triton.next_power_of_2(width - first) if width > first else 0
    _linear_kernel[(triton.cdiv(outputs, outputs_each),)](
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
        FIRST=first,
        SECOND=second,
        LANES=min(LANES, second or first),
        OUTPUTS=outputs_each,
        num_warps=1,
        **_overlap(),
    )


def _overlap() -> dict[str, Any]:
    overlap = launch.overlap and _can_overlap()
    return {"OVERLAP": overlap} | ({"launch_pdl": True} if overlap else {})


@functools.cache
def _can_overlap() -> bool:
    """The instructions for it came with sm_90 (PTX ISA, griddepcontrol)."""
    return not triton.knobs.runtime.interpret and torch.cuda.get_device_capability() >= (9, 0)
