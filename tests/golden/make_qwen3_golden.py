"""Write tests/golden/qwen3_*.safetensors from transformers' own Qwen3. Needs torch, which the project does
not.

    python3 -m venv goldenvenv && goldenvenv/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors
    numpy goldenvenv/bin/python tests/golden/make_qwen3_golden.py

Each file holds the weights in Hugging Face names (prefix ``weights.``), the input ids and positions, the
hidden states before the first layer, after the first layer and after the final norm, and the logits; its
metadata holds the config.json.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

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
}


def main() -> None:
    """Make both files."""
    for seed, (name, special) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config = Qwen3Config(**COMMON, **special, attn_implementation="eager")
        model = Qwen3ForCausalLM(config).eval()
        with torch.no_grad():  # norms start at one, where a forgotten scale would not show
            for key, value in model.named_parameters():
                if "norm" in key:
                    value.copy_(1.0 + 0.3 * torch.randn_like(value))
        tokens = torch.randint(0, COMMON["vocab_size"], (2, 24))
        # the second row starts late, as a sample after a shared prefix does
        positions = torch.stack([torch.arange(24), torch.arange(24) + 100])
        with torch.no_grad():
            out = model(input_ids=tokens, position_ids=positions, output_hidden_states=True)
        tensors = {f"weights.{k}": v.contiguous() for k, v in model.state_dict().items()}
        if config.tie_word_embeddings:
            tensors.pop("weights.lm_head.weight")
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
