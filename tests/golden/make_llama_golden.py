"""Write tests/golden/llama_*.safetensors from transformers' own Llama. Needs torch, which the project does
not.

    python3 -m venv goldenvenv
    goldenvenv/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    goldenvenv/bin/python tests/golden/make_llama_golden.py

Layout of the files: make_qwen3_golden.py. `smollm2` has the head counts, rope base and norm of
SmolLM2-135M-Instruct; `llama3` is untied with the frequency scaling of Llama 3.1; `linear` stretches all
frequencies alike.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
COMMON = {
    "vocab_size": 96,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
}
MODELS = {
    "smollm2": {
        "hidden_size": 36,
        "intermediate_size": 96,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    },
    "llama3": {
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "linear": {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    },
}


def main() -> None:
    """Make the files."""
    for seed, (name, special) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config = LlamaConfig(**COMMON, **special, attn_implementation="eager")
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():  # norms start at one, where a forgotten scale would not show
            for key, value in model.named_parameters():
                if "norm" in key:
                    value.copy_(1.0 + 0.3 * torch.randn_like(value))
        tokens = torch.randint(0, COMMON["vocab_size"], (2, 24))
        # the second row starts late: after a shared prefix, and where a wrong frequency shows
        positions = torch.stack([torch.arange(24), torch.arange(24) + 700])
        with torch.no_grad():
            out = model(input_ids=tokens, position_ids=positions, output_hidden_states=True)
        tensors = {f"weights.{k}": v for k, v in model.state_dict().items()}
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
        save_file(tensors, HERE / f"llama_{name}.safetensors", metadata=metadata)


if __name__ == "__main__":
    main()
