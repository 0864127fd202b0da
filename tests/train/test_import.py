"""An exported codec read back, to go on training from."""

from pathlib import Path

import pytest
import torch

from scripts.train.export_codec import export
from scripts.train.import_codec import read_export
from tests.train.test_codec import DEPTH, SMALL, noise, small_codec


@pytest.mark.parametrize("wider", [0, 48])
def test_a_codec_read_back_does_as_before_however_wide_its_decoder_gets(tmp_path: Path, wider: int) -> None:
    codec = small_codec()
    export(codec, tmp_path, torch.float32)
    back = read_export(tmp_path, dec_dim=wider).eval()
    assert (back.depth, back.sizes["dec_dim"]) == (DEPTH, wider or SMALL["dec_dim"])
    codes = codec.encode(noise(12))
    assert torch.equal(back.encode(noise(12)), codes)
    torch.testing.assert_close(back.decode(codes), codec.decode(codes), rtol=1e-4, atol=1e-6)


def test_a_codec_read_back_with_more_groups_keeps_its_first(tmp_path: Path) -> None:
    codec = small_codec()
    export(codec, tmp_path, torch.float32)
    back = read_export(tmp_path, depth=DEPTH + 2).eval()
    codes = back.encode(noise(12))
    assert torch.equal(codes[:, :DEPTH], codec.encode(noise(12))[:, :DEPTH])
    assert codes[:, DEPTH : DEPTH + 2].any()
