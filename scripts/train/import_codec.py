"""An exported speech_tokenizer/ back as codec.pt, to go on training from: the inverse of export_codec.py.

    python -m scripts.train.import_codec assets/model/speech_tokenizer OUT [--depth 16] [--dec-dim 320]

Code books get an even usage. Groups that the export left unused and channels that it did not have start
anew: --depth and --dec-dim may be larger than the export's. A wider decoder starts by decoding as before.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from scripts.train.codec_model import CODES, GROUPS, SIZES, Codec
from scripts.train.export_codec import FAR

STEP_FRAMES = 12 * 96  # of a training step


def sizes_of(config: dict[str, Any]) -> dict[str, int]:
    """codec_model's sizes from speech_tokenizer/config.json."""
    encoder, decoder = config["encoder_config"], config["decoder_config"]
    sizes = {"enc_filters": encoder["num_filters"], "enc_window": encoder["sliding_window"]}
    sizes |= {"cb_dim": encoder["codebook_dim"], "dec_latent": decoder["latent_dim"]}
    sizes |= {"dec_dim": decoder["decoder_dim"], "dec_window": decoder["sliding_window"]}
    for kind, part in (("enc", encoder), ("dec", decoder)):
        sizes |= {
            f"{kind}_hidden": part["hidden_size"],
            f"{kind}_inter": part["intermediate_size"],
            f"{kind}_layers": part["num_hidden_layers"],
            f"{kind}_heads": part["num_attention_heads"],
            f"{kind}_head_dim": part["head_dim"],
        }
    return SIZES | sizes


def code_books(tensors: dict[str, Tensor], kind: str, levels: int) -> Tensor:
    """(levels in use, codes, dim)"""
    place = f"encoder.quantizer.{kind}_residual_vector_quantizer.layers"
    tables = [tensors[f"{place}.{level}.codebook.embed_sum"].float() for level in range(levels)]
    return torch.stack([t for t in tables if t[1:].abs().max() > 0 and not (t[1:] == FAR).all()])


def widen(new: Tensor, old: Tensor, at: str) -> Tensor:
    """`old` in the corner of `new`; the old outputs see nothing of the new inputs."""
    if new.shape == old.shape:
        return old
    out = new.clone()
    if old.ndim == 3:
        # ConvTranspose1d: (in, out, kernel). Its blocks: decoder.decoder.N.block.1.
        transposed = at.endswith("block.1.conv.weight")
        rows, columns = old.shape[:2]
        if transposed:
            out[rows:, :columns] = 0
        else:
            out[:rows, columns:] = 0
        out[:rows, :columns] = old
    else:
        out[: len(old)] = old
    return out


def read_export(folder: Path, depth: int = 0, dec_dim: int = 0) -> Codec:
    tensors = load_file(folder / "model.safetensors")
    sizes = sizes_of(json.loads((folder / "config.json").read_text()))
    books = {kind: code_books(tensors, kind, n) for kind, n in (("semantic", 1), ("acoustic", GROUPS - 1))}
    codec = Codec(sizes | ({"dec_dim": dec_dim} if dec_dim else {}), max(depth, 1 + len(books["acoustic"])))
    state = codec.state_dict()
    for name, value in state.items():
        if name in tensors:
            state[name] = widen(value, tensors[name].float(), name)
    for kind, tables in books.items():
        source, target = f"encoder.quantizer.{kind}_residual_vector_quantizer", f"encoder.quantizer.{kind}"
        state[f"{target}.input_proj.weight"] = tensors[f"{source}.input_proj.weight"].float()
        usage = torch.full(state[f"{target}.usage"].shape, STEP_FRAMES / CODES)
        # The reserved code lies out of reach in the export; levels beyond it start near nothing.
        tables = torch.where(tables.abs().amax(-1, keepdim=True) >= FAR / 2, 0.0, tables)
        spread = tables[-1].std() if len(tables) else 1.0
        fresh = torch.randn(*usage.shape, tables.shape[-1]) * spread * 0.5
        fresh[: len(tables)] = tables
        state[f"{target}.usage"], state[f"{target}.sums"] = usage, fresh * usage[..., None]
    codec.load_state_dict(state)
    return codec


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--depth", type=int, default=0, help="code groups in use; default the export's")
    p.add_argument("--dec-dim", type=int, default=0, help="width of the decoder; default the export's")
    a = p.parse_args()
    torch.manual_seed(0)
    codec = read_export(a.folder, a.depth, a.dec_dim)
    a.out.mkdir(parents=True, exist_ok=True)
    blob = {"sizes": codec.sizes, "depth": codec.depth, "step": 0, "mode": "import", "alphabet": ""}
    model = {k: v.half() for k, v in codec.state_dict().items()}
    torch.save({**blob, "model": model}, a.out / "codec.pt")
    print(f"{a.out / 'codec.pt'}: depth {codec.depth}, {codec.sizes}")


if __name__ == "__main__":
    main()
