"""An exported checkpoint's talker back as talker.pt, to go on training from (train_talker --resume).

    python -m scripts.train.import_talker assets/model OUT --depth 8

The tables of code books beyond --depth are made anew, as constants.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from backend.checkpoint.sizes import SpeakerEncoderSize, Stack
from scripts.train.talker_checkpoint import is_unused, save_talker
from scripts.train.talker_model import TalkerModel, TalkerSizes, initialise


def stack_of(config: dict[str, Any]) -> Stack:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    hidden, mlp, layers, heads = (config[name] for name in names)
    return Stack(hidden, mlp, layers, heads, config["num_key_value_heads"], config["head_dim"])


def sizes_of(config: dict[str, Any], depth: int) -> TalkerSizes:
    """talker_model's sizes from config.json."""
    talker, speaker = config["talker_config"], config["speaker_encoder_config"]
    return TalkerSizes(
        talker=stack_of(talker),
        predictor=stack_of(talker["code_predictor_config"]),
        speaker=SpeakerEncoderSize(
            tuple(speaker["enc_channels"]),
            speaker["enc_attention_channels"],
            speaker["enc_res2net_scale"],
            speaker["enc_se_channels"],
        ),
        text_vocab=talker["text_vocab_size"],
        text_hidden=talker["text_hidden_size"],
        depth=depth,
    )


def read_export(folder: Path, depth: int) -> TalkerModel:
    """Raises ValueError where the checkpoint's tensors are not those that its config asks for."""
    model = TalkerModel(sizes_of(json.loads((folder / "config.json").read_text()), depth))
    initialise(model)
    state = model.state_dict()
    tensors = load_file(folder / "model.safetensors")
    if tensors.keys() != state.keys():
        raise ValueError(f"{folder}: other tensors than its config asks for: {tensors.keys() ^ state.keys()}")
    model.load_state_dict({n: t if is_unused(n, depth) else tensors[n].float() for n, t in state.items()})
    return model


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--depth", type=int, required=True, help="code groups in use")
    a = p.parse_args()
    size = save_talker(read_export(a.folder, a.depth), a.out, step=0, log=[])
    print(f"{a.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
