"""The mixture-of-experts MLP of Qwen3-MoE, **dropless**: every token gets all the experts it chose, whatever
the load.

On a mesh the `expert` axis holds experts and, outside this layer, rows of its own like `fsdp` does. Inside,
the devices of one expert group gather each other's tokens, compute their own experts' pairs, and add up and
scatter the results. With as many choices per token as devices in the group (8 in Qwen3-30B-A3B) that moves
what an all-to-all exchange would, and nothing has to be dropped to keep shapes fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from autoforge_jax.compilation import target_platform
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.sharding import Layout, active_layout
from autoforge_jax.numerics.expert_blocks import assign_blocks, block_size, sum_by_blocks

EXPERT_WEIGHTS = ("router", "expert_gate", "expert_up", "expert_down")


class Balance(NamedTuple):
    """How evenly one layer's router spread the tokens of each row."""

    penalty: Float[Array, " B"]
    """``count · Σ_e f_e P_e`` with f_e the pairs of expert e per token and P_e its mean probability, over the
    row's tokens (Switch Transformer, arXiv 2101.03961 eq. 4–6; transformers' `load_balancing_loss_func` for
    one row and one layer). `per_token` when all experts are used alike; 0 for a row of padding."""
    peak_load: Float[Array, " B"]
    """Pairs of the busiest expert, as a multiple of an even share."""


def moe_mlp(
    layer: dict[str, Array],
    h: Float[Array, "B T D"],
    valid: Bool[Array, "B T"],
    experts: Experts,
) -> tuple[Float[Array, "B T D"], Balance]:
    """Σ over a token's experts of weight × SwiGLU, in h's type; zeros where not `valid`."""
    weights = [layer[name] for name in EXPERT_WEIGHTS]
    layout = active_layout()
    if layout is None:
        return _local(h, valid, *weights, experts=experts, layout=None, by_rows=False)
    by_rows = h.shape[0] % layout.split("rows") == 0
    rows = layout.rows.spec if by_rows else PartitionSpec()
    (tensor,), (expert,) = (dict(layout.rules)[name] for name in ("mlp", "experts"))
    wide, narrow = PartitionSpec(expert, None, tensor), PartitionSpec(expert, tensor, None)

    def mapped(*arrays: Array) -> tuple[Array, Balance]:
        return _local(*arrays, experts=experts, layout=layout, by_rows=by_rows)

    return jax.shard_map(
        mapped,
        mesh=layout.mesh,
        in_specs=(rows, rows, PartitionSpec(), wide, wide, narrow),
        out_specs=(rows, Balance._make((rows, rows))),
        check_vma=False,
    )(h, valid, *weights)


def _local(
    h: Array,
    valid: Array,
    router: Array,
    gate: Array,
    up: Array,
    down: Array,
    *,
    experts: Experts,
    layout: Layout | None,
    by_rows: bool,
) -> tuple[Array, Balance]:
    """What one device computes: the pairs of its own experts, for the tokens of its expert group."""
    batch, length, width = h.shape
    probabilities, chosen, weights = route(h, router, experts)
    balance = measure_balance(probabilities, chosen, valid, experts)
    chosen = jnp.where(valid[:, :, None], chosen, experts.count)
    tokens = h.reshape(-1, width)
    chosen, weights = (x.reshape(-1, experts.per_token) for x in (chosen, weights))
    gather = layout is not None and by_rows and layout.split("experts") > 1
    if gather:
        tokens, chosen, weights = (
            jax.lax.all_gather(x, "expert", axis=0, tiled=True) for x in (tokens, chosen, weights)
        )
    if layout is not None:
        chosen = chosen - jax.lax.axis_index("expert").astype(jnp.int32) * gate.shape[0]
    out = expert_sum(tokens, chosen, weights, gate, up, down)
    if layout is not None:
        out = jax.lax.psum(out, "tensor")
        if gather:
            out = jax.lax.psum_scatter(out, "expert", scatter_dimension=0, tiled=True)
        else:
            out = jax.lax.psum(out, "expert")
    return out.astype(h.dtype).reshape(batch, length, width), balance


def route(
    h: Float[Array, "B T D"], router: Float[Array, "D E"], experts: Experts
) -> tuple[Float[Array, "B T E"], Int[Array, "B T k"], Float[Array, "B T k"]]:
    """(probabilities, chosen experts, their weights); softmax in float32, weights rounded to h's type as
    transformers does."""
    logits = h @ router.astype(h.dtype)
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    weights, chosen = jax.lax.top_k(probabilities, experts.per_token)
    if experts.normalise:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return probabilities, chosen.astype(jnp.int32), weights.astype(h.dtype)


def expert_sum(
    tokens: Float[Array, "N D"],
    chosen: Int[Array, "N k"],
    weights: Float[Array, "N k"],
    gate: Float[Array, "E D F"],
    up: Float[Array, "E D F"],
    down: Float[Array, "E F D"],
) -> Float[Array, "N D"]:
    """Σ_k weight × expert(token) over the experts given, float32; a choice outside ``0 … E - 1`` adds
    nothing."""
    count = gate.shape[0]
    blocks = assign_blocks(chosen, count, block_size(chosen.size, count, target_platform()))
    gate, up, down = (matrix.astype(tokens.dtype) for matrix in (gate, up, down))
    return sum_by_blocks(tokens, weights, (gate, up, down), blocks)


def measure_balance(
    probabilities: Float[Array, "B T E"],
    chosen: Int[Array, "B T k"],
    valid: Bool[Array, "B T"],
    experts: Experts,
) -> Balance:
    """`Balance` of one layer. The gradient goes through the probabilities only."""
    seen = valid.astype(jnp.float32)
    tokens = jnp.maximum(jnp.sum(seen, axis=1), 1.0)[:, None]
    picked = jnp.sum(jax.nn.one_hot(chosen, experts.count, dtype=jnp.float32), axis=2)
    load = jnp.einsum("bte,bt->be", picked, seen) / tokens
    mean = jnp.einsum("bte,bt->be", probabilities, seen) / tokens
    return Balance(
        penalty=experts.count * jnp.sum(load * mean, axis=1),
        peak_load=jnp.max(load, axis=1) * (experts.count / experts.per_token),
    )
