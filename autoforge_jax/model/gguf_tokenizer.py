"""The tokenizer in a GGUF file's metadata -> tokenizer.json, tokenizer_config.json and the chat template.

A GGUF file names how text is cut before merging (`tokenizer.ggml.pre`); `PRE_TOKENIZERS` holds the names that
were checked against the original tokenizer. Cutting differently would give ids that the model has never seen
in that place, so an unknown name is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autoforge_jax.errors import WeightsError

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Values of `tokenizer.ggml.token_type`."""

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES],
    },
}
"""`tokenizer.ggml.pre` -> the tokenizers library's description. `smollm`: GPT-2 with single digits."""


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """File name -> content. WeightsError for a tokenizer of a kind that is not read."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise WeightsError(
            f"tokenizer.ggml.model is {kind!r} with pre-tokenizer {pre!r}; read are 'gpt2' with "
            f"{sorted(PRE_TOKENIZERS)}. Use the model's Hugging Face folder"
        )
    try:
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        merges = metadata["tokenizer.ggml.merges"]
    except KeyError as error:
        raise WeightsError(f"the metadata lacks {error.args[0]}") from error
    other = sorted({kind for kind in types if kind not in (NORMAL, CONTROL, USER_DEFINED)})
    if other or len(types) != len(tokens):
        raise WeightsError(
            f"tokenizer.ggml.token_type has {len(types)} values for {len(tokens)} tokens and kinds {other}; "
            "expected one each of normal, control or user-defined"
        )
    added = [
        {
            "id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kind == CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind != NORMAL
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {**_BYTES, "add_prefix_space": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }  # fmt: skip
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata.get("llama.context_length", 1_000_000)),
    }
    for name, index in tokenizer_ids(metadata).items():
        config[name.removesuffix("_id")] = tokens[index]
    files = {"tokenizer.json": json.dumps(tokenizer, ensure_ascii=False)}
    template = metadata.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
        files["chat_template.jinja"] = template
    files["tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return {name: text.encode() for name, text in files.items()}


def tokenizer_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """``bos_token_id``, ``eos_token_id``, ``pad_token_id`` as far as the file has them."""
    keys = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    return {
        ours: int(metadata[f"tokenizer.ggml.{key}_token_id"])
        for key, ours in keys.items()
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
