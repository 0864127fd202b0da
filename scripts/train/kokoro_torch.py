"""Kokoro-82M in PyTorch, many utterances at once, of the modules of the `kokoro` package (0.9.4, Apache-2.0).

The package speaks one utterance at a time. Here utterances are padded to the longest, and what looks at all
of an utterance (normalisation, LSTMs) looks at its own frames only. Unlike the ONNX file, the package's
modules put noise into the source signal.
"""

import importlib.util
import sys
import types
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn.utils import remove_weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from scripts.train.kokoro_weights import read_weights

# The configuration of Kokoro-82M 1.0.
TOKENS, HIDDEN, STYLE, MELS, LAYERS, KERNEL, LONGEST_UNITS = 178, 512, 128, 80, 3, 5, 50
ALBERT = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048, "num_hidden_layers": 12}
GENERATOR: dict[str, Any] = {
    "upsample_initial_channel": 512,
    "upsample_rates": [10, 6],
    "upsample_kernel_sizes": [20, 12],
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5]] * 3,
    "gen_istft_n_fft": 20,
    "gen_istft_hop_size": 5,
}


def package_modules() -> tuple[Any, Any]:
    """The package's network modules, without its __init__, which wants a hub, spaCy and more."""
    if "kokoro" not in sys.modules:
        spec = importlib.util.find_spec("kokoro")
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError("pip install --no-deps kokoro==0.9.4")
        package = types.ModuleType("kokoro")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["kokoro"] = package
    return importlib.import_module("kokoro.modules"), importlib.import_module("kokoro.istftnet")


class Frames:
    """Which frames of the padded batch belong to each utterance, at every rate of the networks."""

    def __init__(self) -> None:
        self.counts, self.longest = torch.ones(1), 1

    def mask(self, x: Tensor) -> Tensor:
        """(B, 1, T) for x (B, C, T), whose rate is a whole multiple of the frames'."""
        counts = self.counts * (x.shape[-1] // self.longest)
        return (torch.arange(x.shape[-1], device=x.device) < counts[:, None])[:, None]


class MaskedAdaIN(nn.Module):
    """The package's AdaIN1d with mean and variance of the utterance's own frames; 0 beyond them."""

    def __init__(self, fc: nn.Linear, frames: Frames) -> None:
        super().__init__()
        self.fc, self.frames = fc, frames

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        gamma, beta = self.fc(s)[..., None].chunk(2, dim=1)
        mask = self.frames.mask(x)
        count = mask.sum(-1, keepdim=True)
        mean = (x * mask).sum(-1, keepdim=True) / count
        centred = (x - mean) * mask
        scale = (centred.square().sum(-1, keepdim=True) / count + 1e-5).rsqrt() * (1 + gamma)
        return (centred * scale + beta) * mask


class KokoroTorch(nn.Module):
    def __init__(self, model: onnx.ModelProto) -> None:
        from transformers import AlbertConfig, AlbertModel

        super().__init__()
        modules, istftnet = package_modules()
        self.bert = AlbertModel(AlbertConfig(vocab_size=TOKENS, **ALBERT), add_pooling_layer=False)
        self.bert_encoder = nn.Linear(ALBERT["hidden_size"], HIDDEN)
        self.predictor = modules.ProsodyPredictor(STYLE, HIDDEN, LAYERS, LONGEST_UNITS, 0.2)
        self.text_encoder = modules.TextEncoder(HIDDEN, KERNEL, LAYERS, TOKENS)
        self.decoder = istftnet.Decoder(HIDDEN, STYLE, MELS, **GENERATOR)
        self.frames = Frames()
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, istftnet.AdaIN1d):
                    setattr(module, name, MaskedAdaIN(child.fc, self.frames))
            if hasattr(module, "weight_g"):
                remove_weight_norm(module)
        self.load_state_dict(read_weights(model))
        self.eval()

    @torch.inference_mode()
    def forward(self, ids: Tensor, lengths: Tensor, style: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B, L) padded with 0, lengths (B,) on the CPU, style (B, 256), speed (B,).

        Audio (B, 600 * the longest's units) and units of 600 samples for each id (B, L), 0 beyond the ids.
        """
        device = ids.device
        beyond = torch.arange(ids.shape[1], device=device) >= lengths.to(device)[:, None]
        voice, prosody = style[:, :STYLE].contiguous(), style[:, STYLE:].contiguous()
        hidden = self.bert(ids, attention_mask=(~beyond).int()).last_hidden_state
        text = self.bert_encoder(hidden).transpose(1, 2)
        text = self.predictor.text_encoder(text, prosody, lengths, beyond)
        timed = packed_lstm(self.predictor.lstm, text, lengths)
        units = self.predictor.duration_proj(timed).sigmoid().sum(-1) / speed[:, None]
        units = units.round().clamp(min=1).long().masked_fill(beyond, 0)
        ends = units.cumsum(1)
        counts = ends[:, -1].contiguous()
        host_counts = counts.cpu()
        self.frames.counts, self.frames.longest = counts, int(host_counts.max())
        at = torch.arange(self.frames.longest, device=device).expand(len(ids), -1).contiguous()
        which = torch.searchsorted(ends, at, right=True).clamp(max=ids.shape[1] - 1)
        inside = (at < counts[:, None])[..., None]

        def spread(x: Tensor) -> Tensor:
            """(B, L, C) by token -> (B, T, C) by frame."""
            return x.gather(1, which[..., None].expand(-1, -1, x.shape[-1])) * inside

        shared = packed_lstm(self.predictor.shared, spread(text), host_counts).transpose(1, 2)
        pitch = energy = shared
        for block in self.predictor.F0:
            pitch = block(pitch, prosody)
        for block in self.predictor.N:
            energy = block(energy, prosody)
        pitch, energy = self.predictor.F0_proj(pitch), self.predictor.N_proj(energy)
        mask = self.frames.mask(pitch)[:, 0]
        spoken = spread(self.text_encoder(ids, lengths, beyond).transpose(1, 2)).transpose(1, 2)
        audio = self.decoder(spoken, pitch[:, 0] * mask, energy[:, 0] * mask, voice)
        return audio[:, 0], units


def packed_lstm(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    """x (B, T, C), lengths (B,) on the CPU -> (B, T, 2 * units), 0 beyond the lengths."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]
