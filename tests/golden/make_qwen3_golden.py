"""Write tests/golden/qwen3_*.safetensors from transformers' own Qwen3 and Qwen3-MoE. Needs torch, which the
project does not.

    python3 -m venv goldenvenv && goldenvenv/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors
    numpy goldenvenv/bin/python tests/golden/make_qwen3_golden.py

Each file holds the weights in Hugging Face names (prefix ``weights.``), the input ids and positions, the
hidden states before the first layer, after the first layer and after the final norm, and the logits; its
metadata holds the config.json. A mixture of experts also has `balance`: per row and layer the load-balancing
loss of that row and layer alone, by transformers' `load_balancing_loss_func`. Names of files on the command
line: only those are made.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

HERE = Path(__file__).resolve().parent
COMMON = {
    "vocab_size": 96,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
MODELS = {
    "tied": {
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "untied": {
        "intermediate_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
    "wide_heads": {  # a key/value head for every query head, heads wider together than the model
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 12,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5_000_000.0},
    },
    "moe": {
        "intermediate_size": 64,  # of dense layers, of which it has none
        "moe_intermediate_size": 12,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
    "moe_unnormalised": {
        "intermediate_size": 64,
        "moe_intermediate_size": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}


def stored_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors as `save_pretrained` lays them out on disk (experts one by one)."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def balance(logits: tuple[torch.Tensor, ...], config: Qwen3MoeConfig, rows: int) -> torch.Tensor:
    """[rows, layers]."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    out = torch.empty(rows, len(logits))
    for depth, layer in enumerate(logits):
        for row, part in enumerate(layer.reshape(rows, -1, config.num_experts)):
            out[row, depth] = load_balancing_loss_func(
                (part,), config.num_experts, config.num_experts_per_tok
            )
    return out


def main() -> None:
    """Make the files."""
    for seed, (name, special) in enumerate(MODELS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(seed)
        moe = "num_experts" in special
        kind, family = (Qwen3MoeConfig, Qwen3MoeForCausalLM) if moe else (Qwen3Config, Qwen3ForCausalLM)
        config = kind(**COMMON, **special, attn_implementation="eager")
        model = family(config).eval()
        with torch.no_grad():  # norms start at one, where a forgotten scale would not show
            for key, value in model.named_parameters():
                if "norm" in key:
                    value.copy_(1.0 + 0.3 * torch.randn_like(value))
        tokens = torch.randint(0, COMMON["vocab_size"], (2, 24))
        # the second row starts late, as a sample after a shared prefix does
        positions = torch.stack([torch.arange(24), torch.arange(24) + 100])
        with torch.no_grad():
            extra = {"output_router_logits": True} if moe else {}
            out = model(input_ids=tokens, position_ids=positions, output_hidden_states=True, **extra)
        tensors = {f"weights.{k}": v.contiguous() for k, v in stored_weights(model).items()}
        if config.tie_word_embeddings:
            tensors.pop("weights.lm_head.weight", None)
        if moe:
            tensors["balance"] = balance(out.router_logits, config, tokens.shape[0])
        tensors |= {
            "tokens": tokens.int(),
            "positions": positions.int(),
            "hidden_first": out.hidden_states[0],
            "hidden_middle": out.hidden_states[1],
            "hidden_last": out.hidden_states[-1],
            "logits": out.logits,
        }
        tensors = {k: v.clone().contiguous() for k, v in tensors.items()}
        metadata = {"config": json.dumps(config.to_dict(), sort_keys=True, default=str)}
        save_file(tensors, HERE / f"qwen3_{name}.safetensors", metadata=metadata)


if __name__ == "__main__":
    main()
