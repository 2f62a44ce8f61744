"""Logical axis names of every parameter: the one table that meshes are built from."""

from __future__ import annotations

LOGICAL_AXES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocab", "embed"),
    "lm_head": ("vocab", "embed"),
    "final_norm": ("embed",),
    "layers/input_norm": ("layers", "embed"),
    "layers/query": ("layers", "embed", "heads"),
    "layers/key": ("layers", "embed", "kv_heads"),
    "layers/value": ("layers", "embed", "kv_heads"),
    "layers/query_norm": ("layers", None),
    "layers/key_norm": ("layers", None),
    "layers/output": ("layers", "heads", "embed"),
    "layers/post_norm": ("layers", "embed"),
    "layers/gate": ("layers", "embed", "mlp"),
    "layers/up": ("layers", "embed", "mlp"),
    "layers/down": ("layers", "mlp", "embed"),
}
"""Path of the parameter -> one name per axis (None: never split). `heads` and `kv_heads` count heads ×
head_dim, so a mesh axis on them must divide the number of heads."""
