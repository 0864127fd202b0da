# mypy: disable-error-code=no-untyped-def
"""A whole frame as one compiled function, for the CPU.

There a frame is some 500 small operations of a microsecond of arithmetic each, so calling them one
by one costs more than computing them. numba (a dependency of vLLM) compiles the loop of `frame` with
the arithmetic of `plain` into one function, with no C++ compiler. Weights that bfloat16 holds
exactly, as published ones do, stay bfloat16 in memory, half the bytes to read for every code;
all arithmetic is float32.
"""

import math
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.noise import ROUNDS
from backend.code_predictor.weights import PredictorWeights

# Sums may be reordered, so that they vectorise; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "nsz", "arcp"}


class CpuPredictor:
    """Predicts frames in `FrameBuffers` of any batch with one set of weights, on one thread."""

    def __init__(self, weights: PredictorWeights) -> None:
        w, s = weights, weights.shape
        self._weights = weights
        self._projection = (
            np.zeros((0, 0), np.float32) if w.projection is None else _array(w.projection),
            np.zeros(s.hidden, np.float32) if w.projection_bias is None else _floats(w.projection_bias),
        )
        self._layers = (
            _floats(w.input_norm),
            _array(w.qkv),
            _floats(w.q_norm) * s.head_dim**-0.5,
            _floats(w.k_norm),
            _array(w.attention_out),
            _floats(w.mlp_norm),
            _array(w.gate_up),
            _array(w.mlp_out),
        )
        self._codes = (
            _floats(w.final_norm),
            _array(w.heads),
            _floats(w.embeddings),
            _floats(w.prepared.tables),
        )
        self._rotary = (w.prepared.cos.numpy(), w.prepared.sin.numpy())

    def __call__(self, buffers: FrameBuffers) -> None:
        b, s = buffers, self._weights.shape
        codes = b.codes.numpy()
        next_embeds = np.empty(b.next_embeds.shape, np.float32)
        _predict(
            s.heads,
            s.kv_heads,
            s.norm_eps,
            self._projection,
            self._layers,
            self._codes,
            self._rotary,
            b.inputs.float().numpy(),
            b.text_step.float().numpy(),
            (
                b.seed.numpy(),
                b.frame.numpy(),
                b.inverse_temperature.numpy(),
                b.noise.numpy(),
                b.top_k.numpy(),
            ),
            codes,
            next_embeds,
        )
        b.next_embeds.copy_(torch.from_numpy(next_embeds))


def _floats(tensor: torch.Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def _array(tensor: torch.Tensor) -> Any:
    """bfloat16 bits as uint16 where that loses nothing, else float32."""
    tensor = tensor.detach().contiguous()
    narrow = tensor.bfloat16()
    if torch.equal(narrow.to(tensor.dtype), tensor):
        return narrow.view(torch.uint16).numpy()
    return tensor.float().numpy()


@intrinsic
def _widen(typing_context: Any, value: Any) -> Any:
    """A stored weight as float32: a bfloat16 is the upper half of one."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (bits,) = arguments
        if value == types.uint16:
            word = builder.zext(bits, ir.IntType(32))
            return builder.bitcast(builder.shl(word, ir.IntType(32)(16)), ir.FloatType())
        return bits

    return types.float32(value), codegen


# Loops throughout: numba's slice assignments, sorts and argmax each take seconds to compile.


@njit(cache=True)
def _copy(x, out):
    for i in range(len(out)):
        out[i] = x[i]


@njit(cache=True, fastmath=_FAST)
def _products(weight, x, out, add):
    """out [rows, n] = x [rows, k] @ weight [n, k].T, or is added to.

    Four weight rows at a time share the loads of x, and all rows of x share the loads of weights, which
    are what takes the time; each row's own arithmetic is the same in any batch.
    """
    outputs, width = weight.shape
    for n in range(0, outputs - 3, 4):
        for row in range(len(x)):
            a = b = c = d = np.float32(0)
            for k in range(width):
                v = x[row, k]
                a += _widen(weight[n, k]) * v
                b += _widen(weight[n + 1, k]) * v
                c += _widen(weight[n + 2, k]) * v
                d += _widen(weight[n + 3, k]) * v
            if add:
                out[row, n] += a
                out[row, n + 1] += b
                out[row, n + 2] += c
                out[row, n + 3] += d
            else:
                out[row, n], out[row, n + 1], out[row, n + 2], out[row, n + 3] = a, b, c, d
    for n in range(outputs - outputs % 4, outputs):
        for row in range(len(x)):
            a = np.float32(0)
            for k in range(width):
                a += _widen(weight[n, k]) * x[row, k]
            out[row, n] = out[row, n] + a if add else a


@njit(cache=True, fastmath=_FAST)
def _rms_norm(x, weight, eps, out):
    total = np.float32(0)
    for k in range(len(x)):
        total += x[k] * x[k]
    scale = np.float32(1) / np.sqrt(total / np.float32(len(x)) + np.float32(eps))
    for k in range(len(x)):
        out[k] = x[k] * scale * weight[k]


@njit(cache=True, fastmath=_FAST)
def _rotate(x, cos, sin):
    half = len(cos)
    for i in range(half):
        first, second = x[i], x[half + i]
        x[i] = first * cos[i] - second * sin[i]
        x[half + i] = second * cos[i] + first * sin[i]


@njit(cache=True, fastmath=_FAST)
def _attend(qkv, heads, kv_heads, q_norm, k_norm, eps, cos, sin, keys, values, position, out):
    """One position of one request; keys and values are [kv_heads, positions, head_dim]."""
    dim = len(q_norm)
    scores = np.empty(position + 1, np.float32)
    for h in range(kv_heads):
        key = keys[h, position]
        _rms_norm(qkv[(heads + h) * dim : (heads + h + 1) * dim], k_norm, eps, key)
        _rotate(key, cos, sin)
        _copy(qkv[(heads + kv_heads + h) * dim :], values[h, position])
    for h in range(heads):
        query = qkv[h * dim : (h + 1) * dim]
        _rms_norm(query, q_norm, eps, query)
        _rotate(query, cos, sin)
        kv = h // (heads // kv_heads)
        largest = np.float32(-np.inf)
        for p in range(position + 1):
            score = np.float32(0)
            for i in range(dim):
                score += query[i] * keys[kv, p, i]
            scores[p] = score
            largest = max(largest, score)
        total = np.float32(0)
        for p in range(position + 1):
            scores[p] = np.exp(scores[p] - largest)
            total += scores[p]
        mixed = out[h * dim : (h + 1) * dim]
        for i in range(dim):
            mixed[i] = np.float32(0)
        for p in range(position + 1):
            share = scores[p] / total
            for i in range(dim):
                mixed[i] += share * values[kv, p, i]


@njit(cache=True)
def _uniform(seed, frame, group, code):
    """As `noise.uniforms`, for one code."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1 = np.uint64(code // 4), np.uint64(group)
    c2, c3 = np.uint64(frame) & low, np.uint64(0)
    k0, k1 = np.uint64(seed) & low, np.uint64(seed) >> np.uint64(32)
    for _ in range(ROUNDS):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (second >> np.uint64(32)) ^ c1 ^ k0, second & low
        c2, c3 = (first >> np.uint64(32)) ^ c3 ^ k1, first & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    word = code % 4
    bits = c0 if word == 0 else c1 if word == 1 else c2 if word == 2 else c3
    return (np.float32(bits >> np.uint64(9)) + np.float32(0.5)) * np.float32(2.0**-23)


@njit(cache=True)
def _kth_largest(values, k):
    """By a heap of the k largest so far, smallest on top: nearly every value is below it."""
    heap = np.empty(k, np.float32)
    for i in range(k):
        heap[i] = -np.inf
    for value in values:
        if value <= heap[0]:
            continue
        parent = 0
        while True:
            child = 2 * parent + 1
            if child >= k:
                break
            if child + 1 < k and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= value:
                break
            heap[parent] = heap[child]
            parent = child
        heap[parent] = value
    return heap[0]


@njit(cache=True)
def _choose(logits, group, seed, frame, inverse_temperature, noise, top_k):
    """As `plain.choose`, for one row; noise is only computed for codes that can win."""
    least = _kth_largest(logits, min(top_k, len(logits)) if noise else 1)
    winner, highest = 0, np.float32(-np.inf)
    for code in range(len(logits)):
        if logits[code] >= least:
            noisy = logits[code] * inverse_temperature
            if noise:
                u = _uniform(seed, frame, group, code)
                noisy -= noise * np.float32(math.log(-math.log(u)))
            if noisy > highest:
                winner, highest = code, noisy
    return winner


@njit(cache=True, fastmath=_FAST)
def _run_layers(stream, layers, heads, kv_heads, eps, cos, sin, keys, values, position, scratch):
    """Takes stream [rows, hidden] through all layers, every row at the same position."""
    input_norm, qkv_weight, q_norm, k_norm, attention_out, mlp_norm, gate_up, mlp_out = layers
    normed, qkv, attended, gates, gated = scratch
    rows, mlp = len(stream), gated.shape[1]
    for layer in range(len(input_norm)):
        for row in range(rows):
            _rms_norm(stream[row], input_norm[layer], eps, normed[row])
        _products(qkv_weight[layer], normed, qkv, False)
        for row in range(rows):
            _attend(
                qkv[row], heads, kv_heads, q_norm[layer], k_norm[layer], eps, cos[position], sin[position],
                keys[layer, row], values[layer, row], position, attended[row],
            )  # fmt: skip
        _products(attention_out[layer], attended, stream, True)
        for row in range(rows):
            _rms_norm(stream[row], mlp_norm[layer], eps, normed[row])
        _products(gate_up[layer], normed, gates, False)
        for row in range(rows):
            for i in range(mlp):
                gate = gates[row, i]
                gated[row, i] = gate / (np.float32(1) + np.exp(-gate)) * gates[row, mlp + i]
        _products(mlp_out[layer], gated, stream, True)


@njit(cache=True, nogil=True)
def _predict(
    heads, kv_heads, eps, projection, layers, codes_of, rotary,
    inputs, text_step, controls, codes, next_embeds,
):  # fmt: skip
    project, bias = projection
    final_norm, head_weights, embeddings, tables = codes_of
    cos, sin = rotary
    seed, frame, inverse_temperature, noise, top_k = controls
    batch, groups = codes.shape
    hidden, dim = len(final_norm), 2 * cos.shape[1]
    cache = (len(layers[0]), batch, kv_heads, groups + 1, dim)
    keys, values = np.empty(cache, np.float32), np.empty(cache, np.float32)
    stream, normed = np.empty((batch, hidden), np.float32), np.empty((batch, hidden), np.float32)
    qkv = np.empty((batch, (heads + 2 * kv_heads) * dim), np.float32)
    attended = np.empty((batch, heads * dim), np.float32)
    gates = np.empty((batch, layers[6].shape[1]), np.float32)
    gated = np.empty((batch, layers[7].shape[2]), np.float32)
    scratch = (normed, qkv, attended, gates, gated)
    logits = np.empty((batch, head_weights.shape[1]), np.float32)
    for position in range(2):
        given = inputs[position * batch : (position + 1) * batch]
        for row in range(batch):
            _copy(bias if project.size else given[row], stream[row])
        if project.size:
            _products(project, given, stream, True)
        _run_layers(stream, layers, heads, kv_heads, eps, cos, sin, keys, values, position, scratch)
    for group in range(1, groups):
        for row in range(batch):
            _rms_norm(stream[row], final_norm, eps, normed[row])
        _products(head_weights[group - 1], normed, logits, False)
        for row in range(batch):
            code = _choose(
                logits[row], group, seed[row], np.int64(frame[row]), inverse_temperature[row],
                noise[row], np.int64(top_k[row]),
            )  # fmt: skip
            codes[row, group] = code
            _copy(tables[group - 1, code], stream[row])
        if group + 1 < groups:
            _run_layers(stream, layers, heads, kv_heads, eps, cos, sin, keys, values, group + 1, scratch)
    for row in range(batch):
        if not 0 <= codes[row, 0] < logits.shape[1]:
            for group in range(groups):
                codes[row, group] = 0
        for i in range(next_embeds.shape[1]):
            total = np.float32(0)
            for group in range(1, groups):
                total += embeddings[group - 1, codes[row, group], i]
            next_embeds[row, i] = inputs[batch + row, i] + total + text_step[row, i]
