"""Is this the server that the run needs? Asked before it gets any weights: SGLang dies of tensors of another
shape, and says yes to another rope base."""

from __future__ import annotations

import json
from pathlib import Path

from autoforge_jax.errors import WeightsError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.rollout.sglang_http import ModelInfo, SGLangServer

_COMPARED = (
    "vocab_size", "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim",
    "rope_theta", "rms_norm_eps", "tie_embeddings", "architecture", "rope_scaling",
)  # fmt: skip


async def admit(
    server: SGLangServer, info: ModelInfo, model: Qwen3Config, max_length: int, *, sleeps: bool = False
) -> None:
    """WeightsError when the server serves another model than `model`, or was started with options under which
    its samples are not what the run would learn from. info: its `/model_info`, just asked. sleeps: it has to
    give its device's memory back between rollouts (`rollout.sglang.share_device`)."""
    started = await server.server_info()
    faults: list[str] = []
    # Beyond this SGLang refuses contexts and cuts turns short.
    if started.max_req_input_len < max_length:
        faults.append(
            f"it takes {started.max_req_input_len} tokens, rollout.max_trajectory_tokens is {max_length}: "
            "start it with more --max-total-tokens and --context-length, or lower that"
        )
    if started.speculative_algorithm:
        faults.append(
            f"speculative decoding ({started.speculative_algorithm}) would keep an old draft model: start it "
            "without"
        )
    if started.allow_auto_truncate:
        faults.append("it would cut long contexts: start it without --allow-auto-truncate")
    if info.preferred_sampling_params:
        faults.append(
            f"preferred sampling params {info.preferred_sampling_params} would join the run's: start it "
            "without"
        )
    if sleeps and started.device != "cpu" and not started.enable_memory_saver:
        faults.append(
            "rollout.sglang.share_device wants its memory between rollouts: start it with "
            "--enable-memory-saver"
        )
    faults += _model_faults(info, model)
    if faults:
        raise WeightsError("\n".join(f"{server.url} cannot serve this run: {fault}" for fault in faults))


def _model_faults(info: ModelInfo, model: Qwen3Config) -> list[str]:
    folders = [Path(path) for path in (info.model_path, info.tokenizer_path) if path]
    folder = next((f for f in folders if (f / "config.json").is_file()), None)
    if folder is None:
        return [
            f"its model folder {info.model_path!r} cannot be read here, so its shape is unknown; weights "
            "travel through files: start it with the run's folder serve/initial, on a file system that both "
            "see"
        ]
    try:
        served = Qwen3Config.from_hf(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (ValueError, WeightsError) as error:
        return [f"{folder}: {error}"]
    return [
        f"{name} is {getattr(served, name)} in {folder}, the run has {getattr(model, name)}"
        for name in _COMPARED
        if getattr(served, name) != getattr(model, name)
    ]
