"""GGUF files -> Hugging Face folders, on a tiny file written here by the library that llama.cpp ships."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx
from tokenizers import pre_tokenizers

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.export_hf import hf_tensors
from autoforge_jax.model.gguf_file import _unpermute, find_gguf, import_gguf
from autoforge_jax.model.hf_config import read_hf_config
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.model.qwen3 import Qwen3, weights_of
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.tokenizer import PolicyTokenizer

gguf = pytest.importorskip("gguf")

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*CONTROL, *BYTES, "he", "Ġt"]
CONFIG = Qwen3Config(
    vocab_size=len(TOKENS),
    num_layers=2,
    hidden_size=64,  # quantised blocks are 32 wide
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rope_theta=100_000.0,
    rms_norm_eps=1e-5,
    architecture="llama",
)
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to query and key rows, row by row: channel i of the first half goes to
    2i, channel i of the second to 2i + 1."""
    out = np.empty_like(rows)
    width = rows.shape[0] // heads
    for head in range(heads):
        for i in range(width // 2):
            out[head * width + 2 * i] = rows[head * width + i]
            out[head * width + 2 * i + 1] = rows[head * width + width // 2 + i]
    return out


def write_gguf(
    path: Path, tensors: dict[str, np.ndarray], change: Callable[[Any], None] | None = None
) -> None:
    """A Llama of shape CONFIG: embedding Q8_0, projections Q4_1, norms float32, as in the published file."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG.num_layers)
    writer.add_context_length(CONFIG.max_position)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_heads)
    writer.add_head_count_kv(CONFIG.num_kv_heads)
    writer.add_rope_freq_base(CONFIG.rope_theta)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_vocab_size(CONFIG.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)))
    writer.add_token_merges(["h e", "Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    if change is not None:
        change(writer)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for name, value in tensors.items():
        own = name.removesuffix(".weight")
        layer = ""
        if own.startswith("model.layers."):
            _, _, index, own = own.split(".", 3)
            layer = f"blk.{index}."
        kind = None
        if value.ndim == 2:
            heads = {"self_attn.q_proj": CONFIG.num_heads, "self_attn.k_proj": CONFIG.num_kv_heads}.get(own)
            value = interleaved(value, heads) if heads else value
            kind = gguf.GGMLQuantizationType.Q8_0 if not layer else gguf.GGMLQuantizationType.Q4_1
            value = gguf.quants.quantize(value, kind)
        writer.add_tensor(f"{layer}{names[own]}.weight", value, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantised(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Quantise and widen in Hugging Face's row order: rows are quantised one by one, so their order cannot
    matter."""
    out = {}
    for name, value in tensors.items():
        kind = gguf.GGMLQuantizationType.Q4_1 if "layers" in name else gguf.GGMLQuantizationType.Q8_0
        out[name] = value
        if value.ndim == 2:
            out[name] = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind).reshape(value.shape)
    return out


@pytest.fixture(scope="module")
def original() -> dict[str, np.ndarray]:
    params = nnx.split(Qwen3(CONFIG, rngs=nnx.Rngs(5)), nnx.Param)[1]
    return hf_tensors(weights_of(params), CONFIG)


def test_weights_shape_and_tokenizer(tmp_path: Path, original: dict[str, np.ndarray]) -> None:
    write_gguf(tmp_path / "m.gguf", original)
    folder = tmp_path / "model"
    assert import_gguf(str(tmp_path / "m.gguf"), folder) == CONFIG
    assert read_hf_config(folder) == CONFIG
    loaded = hf_tensors(weights_of(load_hf(folder)), CONFIG)
    for name, value in quantised(original).items():
        np.testing.assert_array_equal(loaded[name], value, err_msg=name)
    assert max(np.abs(loaded[n] - original[n]).max() for n in original) > 1e-3, "Q4_1 did round"
    tree = json.loads((folder / "config.json").read_text())
    assert (tree["bos_token_id"], tree["eos_token_id"], tree["pad_token_id"]) == (1, 2, 2)
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["bos_token"]) == ("<|im_end|>", "<|im_start|>")

    tokenizer = PolicyTokenizer.load(folder, FORMATS["smollm2"].roles)
    assert tokenizer.vocab_size == len(TOKENS)
    ids = tokenizer.encode_text("the 42")
    # "the" is cut off before its merge " t" could form; every digit stands alone
    assert [TOKENS[i] for i in ids] == ["t", "he", "Ġ", "4", "2"]
    assert tokenizer.decode(tokenizer.encode_text("<|im_end|> ü\n")) == "<|im_end|> ü\n"
    assert tokenizer.encode_marked("<|im_end|>") == (2,)
    assert tokenizer.decode([3]) == "<repo_name>", "a token that the format does not use is spelled"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.add_string("tokenizer.ggml.pre", "other"), "pre-tokenizer 'other'"),
        (lambda w: w.add_string("tokenizer.ggml.model", "llama"), "tokenizer.ggml.model is 'llama'"),
        (lambda w: w.add_string("general.architecture", "gemma"), "only 'llama' is read"),
        (lambda w: w.add_rope_scaling_factor(2.0), "rope.scaling.factor is set"),
        (lambda w: w.add_token_types([2] * len(TOKENS)), r"kinds \[2\]"),
    ],
    ids=["pre", "model", "architecture", "rope", "types"],
)
def test_kinds_that_are_not_read(
    change: Callable[[Any], None], words: str, tmp_path: Path, original: dict[str, np.ndarray]
) -> None:
    def replace(writer: Any) -> None:
        before = {k: v for part in writer.kv_data for k, v in part.items()}
        for part in writer.kv_data:
            part.clear()
        change(writer)
        writer.kv_data[0].update({k: v for k, v in before.items() if k not in writer.kv_data[0]})

    write_gguf(tmp_path / "m.gguf", original, replace)
    with pytest.raises(WeightsError, match=words):
        import_gguf(str(tmp_path / "m.gguf"), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_tensors_that_are_missing_or_unknown(tmp_path: Path, original: dict[str, np.ndarray]) -> None:
    fewer = {k: v for k, v in original.items() if k != "model.norm.weight"}
    write_gguf(tmp_path / "a.gguf", fewer)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape None"):
        import_gguf(str(tmp_path / "a.gguf"), tmp_path / "model")
    write_gguf(
        tmp_path / "b.gguf", original, lambda w: w.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    )
    with pytest.raises(WeightsError, match="rope_freqs"):
        import_gguf(str(tmp_path / "b.gguf"), tmp_path / "model")


def test_files_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError, match="neither a file nor an installed package"):
        find_gguf("no_such_package_here")
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"GGUX" + bytes(64))
    with pytest.raises(WeightsError, match="not a readable GGUF"):
        import_gguf(str(broken), tmp_path / "model")
    package = tmp_path / "holds_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WeightsError, match="holds 0"):
        find_gguf("holds_a_model")
    (package / "m.gguf").write_bytes(b"")
    assert find_gguf("holds_a_model") == package / "m.gguf"
    assert "holds_a_model" not in sys.modules, "looked at, not imported"


def test_the_query_rows_of_one_head_by_hand() -> None:
    """A wrong un-permutation would still give a model, a bad one."""
    rows = np.arange(8, dtype=np.float32)[:, None]  # two heads of four channels
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert _unpermute(interleaved(rows, 2), 2)[:, 0].tolist() == list(range(8))
