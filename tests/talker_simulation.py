"""Runs a checkpoint's talker on transformers' Qwen3 to see when it stops; codes 1 to 15 are drawn at random.

The rows are those of vLLM-Omni's prompt builder (qwen3_tts/prompt_embeds_builder.py) for a named speaker.
With one position a row, the talker's interleaved multimodal rotary embedding is Qwen3's plain one.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache, Qwen2Tokenizer, Qwen3Config, Qwen3Model

TEMPERATURE, TOP_K, MIN_FRAMES = 0.9, 50, 2  # the published defaults
SPEAKER_ROW, LANGUAGE_ROW = 3061, 2050


class TalkerSimulation:
    """`model_dir` holds a checkpoint; batches of 8 runs are sampled from `seed`."""

    def __init__(self, model_dir: Path, seed: int = 0) -> None:
        self.config = json.loads((model_dir / "config.json").read_text())
        talker = self.config["talker_config"]
        self.weights = {name: w.float() for name, w in load_file(model_dir / "model.safetensors").items()}
        self.qwen_config = Qwen3Config(
            vocab_size=1,
            hidden_size=talker["hidden_size"],
            intermediate_size=talker["intermediate_size"],
            num_hidden_layers=talker["num_hidden_layers"],
            num_attention_heads=talker["num_attention_heads"],
            num_key_value_heads=talker["num_key_value_heads"],
            head_dim=talker["head_dim"],
            rope_parameters={"rope_type": "default", "rope_theta": float(talker["rope_theta"])},
            rms_norm_eps=talker["rms_norm_eps"],
        )
        self.model = Qwen3Model(self.qwen_config).eval()
        own = {
            name.removeprefix("talker.model."): w
            for name, w in self.weights.items()
            if name.startswith("talker.model.layers.") or name == "talker.model.norm.weight"
        }
        missing = self.model.load_state_dict(own, strict=False)
        assert missing.missing_keys == ["embed_tokens.weight"]
        assert missing.unexpected_keys == []
        self.tokenizer = Qwen2Tokenizer.from_pretrained(model_dir)
        self.generator = torch.Generator().manual_seed(seed)
        self.logits_std: list[float] = []

    def text_rows(self, ids: list[int]) -> Tensor:
        first, second = (f"talker.text_projection.linear_fc{i}" for i in (1, 2))
        rows = self.weights["talker.model.text_embedding.weight"][ids]
        rows = F.silu(F.linear(rows, self.weights[f"{first}.weight"], self.weights[f"{first}.bias"]))
        return F.linear(rows, self.weights[f"{second}.weight"], self.weights[f"{second}.bias"])

    def codec_rows(self, *ids: int) -> Tensor:
        return self.weights["talker.model.codec_embedding.weight"][list(ids)]

    def token_count(self, text: str) -> int:
        return len(self.tokenizer(text)["input_ids"])

    def prompt(self, text: str, streamed: bool, instruction: str) -> tuple[Tensor, Tensor]:
        """The prefill rows [rows, hidden], and the text rows that go with the frames to come."""
        ids = self.tokenizer(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
        role, body = ids[:3], ids[3:-5]
        pad, begin, end = (
            self.text_rows([self.config[f"tts_{kind}_token_id"]]) for kind in ("pad", "bos", "eos")
        )
        talker = self.config["talker_config"]
        codec_pad, codec_begin = (
            self.codec_rows(talker["codec_pad_id"]),
            self.codec_rows(talker["codec_bos_id"]),
        )
        tags = self.codec_rows(
            talker["codec_think_id"],
            talker["codec_think_bos_id"],
            LANGUAGE_ROW,
            talker["codec_think_eos_id"],
            SPEAKER_ROW,
        )
        rows = [self.text_rows(role), pad + tags, begin + codec_pad]
        if instruction:
            rows.insert(
                0, self.text_rows(self.tokenizer(f"<|im_start|>user\n{instruction}<|im_end|>\n")["input_ids"])
            )
        if streamed:
            rows.append(self.text_rows(body[:1]) + codec_begin)
            return torch.cat(rows), torch.cat([self.text_rows(body[1:]), end, pad])
        rows += [torch.cat([self.text_rows(body), end]) + codec_pad, pad + codec_begin]
        return torch.cat(rows), pad

    @torch.inference_mode()
    def frames_until_end(
        self,
        text: str,
        streamed: bool = True,
        instruction: str = "",
        greedy: bool = False,
        runs: int = 8,
        limit: int = 300,
    ) -> Tensor:
        """Frames [runs] before the end-of-speech token, `limit` where it did not come."""
        prompt, trailing = self.prompt(text, streamed, instruction)
        end_id = self.config["talker_config"]["codec_eos_token_id"]
        rows = prompt.expand(runs, -1, -1)
        cache = DynamicCache(config=self.qwen_config)
        frames, ended = torch.zeros(runs, dtype=torch.long), torch.zeros(runs, dtype=torch.bool)
        for step in range(limit):
            hidden = self.model(inputs_embeds=rows, past_key_values=cache, use_cache=True).last_hidden_state[
                :, -1
            ]
            logits = F.linear(hidden, self.weights["talker.codec_head.weight"])
            self.logits_std.append(logits[:, :2048].std().item())
            end_logit = logits[:, end_id].clone()
            logits[:, 2048:] = -torch.inf
            logits[:, end_id] = end_logit if step >= MIN_FRAMES else -torch.inf
            top = (logits / TEMPERATURE).topk(1 if greedy else TOP_K)
            choice = torch.multinomial(top.values.softmax(-1), 1, generator=self.generator)
            code = top.indices.gather(1, choice)[:, 0]
            ended |= code == end_id
            if ended.all():
                break
            frames += ~ended
            row = self.codec_rows(*code.clamp(max=2047).tolist())
            for group in range(15):
                residual = torch.randint(2048, (runs,), generator=self.generator)
                row = (
                    row
                    + self.weights[f"talker.code_predictor.model.codec_embedding.{group}.weight"][residual]
                )
            rows = (row + trailing[min(step, len(trailing) - 1)])[:, None]
        return frames
