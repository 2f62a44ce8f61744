"""Dense Qwen3 as transformers computes it: pre-norm blocks, RMS norm on every query and key head, rotary
positions, grouped-query attention, SwiGLU or a mixture of such experts (model.moe), tied or untied output.
With `architecture = "llama"` the same without those norms: Llama and SmolLM2.

`Qwen3` holds the parameters; the arithmetic is plain functions over a tree of arrays (`Weights`), so that the
rollout engine and the learner run the same lines. All layers live stacked on a leading axis and one
`lax.scan` walks them: compile time does not grow with depth. Layout of a projection: [in, out] (transposed
against Hugging Face); logical axes: `sharding.LOGICAL_AXES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.moe import Balance, moe_mlp
from autoforge_jax.model.prefix import SharedPrefixes
from autoforge_jax.model.rope import rope_frequencies
from autoforge_jax.model.sharding import constrain, gather_for_lookup
from autoforge_jax.numerics.attention import PADDING_SEGMENT, PREFIX_SEGMENT
from autoforge_jax.numerics.kernels import attend

Weights = dict[str, Any]
"""``{"embedding": [V, D], "final_norm": [D], ["lm_head": [V, D],] "layers": {name: [L, ...]}}``, float32."""
Layer = dict[str, Array]
"""The arrays of one layer: ``Weights["layers"]`` without the leading axis."""


PRODUCT = "product"
"""Name of a projection's result, for what the backward pass keeps (`_lean`)."""
ONE_DRAW = 1 << 26
"""Matrices of a model up to this size are cut from one draw of random numbers."""


def parameter_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every parameter, in the order they are initialised."""
    c, depth, d = config, config.num_layers, config.hidden_size
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes = {
        "embedding": (c.vocab_size, d),
        "final_norm": (d,),
        "layers/input_norm": (depth, d),
        "layers/query": (depth, d, q),
        "layers/key": (depth, d, kv),
        "layers/value": (depth, d, kv),
        "layers/query_norm": (depth, c.head_dim),
        "layers/key_norm": (depth, c.head_dim),
        "layers/output": (depth, q, d),
        "layers/post_norm": (depth, d),
        "layers/gate": (depth, d, c.intermediate_size),
        "layers/up": (depth, d, c.intermediate_size),
        "layers/down": (depth, c.intermediate_size, d),
    }
    if not c.qk_norm:
        del shapes["layers/query_norm"], shapes["layers/key_norm"]
    if c.experts is not None:
        for name in ("gate", "up", "down"):
            del shapes[f"layers/{name}"]
        inner = c.experts.layer_shapes(d)
        shapes |= {f"layers/{name}": (depth, *shape) for name, shape in inner.items()}
    return shapes if c.tie_embeddings else {**shapes, "lm_head": (c.vocab_size, d)}


@partial(jax.jit, static_argnums=0)
def init_arrays(config: Qwen3Config, key: Array) -> dict[str, Array]:
    """Path -> initial value of every parameter, float32.

    Norms are one (query and key norms `qk_norm_init`); matrices are normal with variance 1/fan-in, those that
    write to the residual stream divided
    by twice the depth and scaled by `residual_init`; embeddings have variance 1/D, so that tied logits start
    with variance one. All come
    from one draw (up to `ONE_DRAW` numbers): a draw per parameter would compile a generator per shape. A
    larger model has a draw per parameter, of which each device of a mesh makes its own part.
    """
    shapes = parameter_shapes(config)
    matrices = {path: shape for path, shape in shapes.items() if not path.endswith("norm")}
    ends = np.cumsum([math.prod(shape) for shape in matrices.values()])
    if int(ends[-1]) <= ONE_DRAW:
        pieces = jnp.split(jax.random.normal(key, (int(ends[-1]),), jnp.float32), ends[:-1])
    else:
        pieces = [
            jax.random.normal(jax.random.fold_in(key, index), shape, jnp.float32)
            for index, shape in enumerate(matrices.values())
        ]
    arrays = {
        path: jnp.full(
            shape, config.qk_norm_init if path.endswith(("query_norm", "key_norm")) else 1.0, jnp.float32
        )
        for path, shape in shapes.items()
    }
    for (path, shape), piece in zip(matrices.items(), pieces, strict=True):
        scale = (shape[-1] if path in ("embedding", "lm_head") else shape[-2]) ** -0.5
        if path in ("layers/output", "layers/down", "layers/expert_down"):
            scale *= config.residual_init * (2 * config.num_layers) ** -0.5
        arrays[path] = scale * piece.reshape(shape)
    return arrays


class StackedLayers(nnx.Module):
    """Parameters of all decoder layers, each with a leading layer axis."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        for name, value in arrays.items():
            setattr(self, name, nnx.Param(value))


class Qwen3(nnx.Module):
    """A dense Qwen3 or Llama. ``graphdef, params = nnx.split(model, nnx.Param)`` is the functional form."""

    def __init__(self, config: Qwen3Config, *, rngs: nnx.Rngs) -> None:
        self.config = config
        arrays = init_arrays(config, rngs.params())
        self.embedding = nnx.Param(arrays["embedding"])
        self.final_norm = nnx.Param(arrays["final_norm"])
        if not config.tie_embeddings:
            self.lm_head = nnx.Param(arrays["lm_head"])
        self.layers = StackedLayers(
            {
                path.removeprefix("layers/"): value
                for path, value in arrays.items()
                if path.startswith("layers/")
            }
        )

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        prefixes: SharedPrefixes | None = None,
    ) -> Float[Array, "B N D"]:
        """Hidden states [B, T, D] after the final norm, in the compute type.

        segment_ids: 0 = padding, 1 = the row's shared prefix, ≥ 2 = one sample each (numerics.attention).
        Rows of padding are finite and mean nothing. With `prefixes` each row also sees its prefix there, and
        the result is [B, 1 + T, D]: first the hidden state of the prefix's last token.
        """
        weights = weights_of(nnx.state(self, nnx.Param))
        return forward(weights, self.config, tokens, positions, segment_ids, prefixes)

    def with_balance(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        prefixes: SharedPrefixes | None = None,
    ) -> tuple[Float[Array, "B N D"], Balance | None]:
        """`__call__`, and `forward_with_balance`'s second result."""
        weights = weights_of(nnx.state(self, nnx.Param))
        return forward_with_balance(weights, self.config, tokens, positions, segment_ids, prefixes)

    def unembedding(self) -> Float[Array, "V D"]:
        """The output matrix: ``logits = hidden @ unembedding().T``."""
        return unembedding(weights_of(nnx.state(self, nnx.Param)))


def weights_of(params: nnx.State) -> Weights:
    """Plain nested dict of arrays of a parameter state."""
    return nnx.to_pure_dict(params)


def unembedding(weights: Weights) -> Float[Array, "V D"]:
    """`lm_head`, or the embedding when they are tied."""
    return weights.get("lm_head", weights["embedding"])


def rms_norm(x: Float[Array, "*N d"], scale: Float[Array, " d"], eps: float) -> Float[Array, "*N d"]:
    """``x / rms(x) · scale`` over the last axis, computed in float32, returned in x's type."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + jnp.float32(eps))
    return (wide * inverse * jnp.expand_dims(scale, tuple(range(x.ndim - 1)))).astype(x.dtype)


def rotary(
    positions: Int[Array, "B T"], config: Qwen3Config
) -> tuple[Float[Array, "B T h"], Float[Array, "B T h"]]:
    """Cosine and sine [B, T, head_dim/2] of the angles, float32."""
    half = config.head_dim // 2
    if config.rope_scaling is None:
        frequencies = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    else:
        frequencies = jnp.asarray(rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling))
    angles = positions.astype(jnp.float32)[:, :, None] * frequencies[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "B T N d"], cos: Float[Array, "B T h"], sin: Float[Array, "B T h"]
) -> Float[Array, "B T N d"]:
    """Turn channel i with channel i + d/2 (the half-split pairing of Llama and Qwen)."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def project(layer: Layer, name: str, h: Float[Array, "*N i"]) -> Float[Array, "*N o"]:
    """``h @ W`` in h's type, plus the projection's adapter where it has one (model.lora).

    Rows and tokens are one axis to the product. Summed over two axes, W's gradient is a product that XLA:CPU
    first turns an operand for: it took twice as long.
    """
    flat = h.reshape(-1, h.shape[-1])
    out = flat @ layer[name].astype(h.dtype)
    if f"{name}_lora_a" in layer:
        a, b = (layer[f"{name}_lora_{side}"].astype(h.dtype) for side in "ab")
        out = out + checkpoint_name(flat @ a, PRODUCT) @ b
    return checkpoint_name(out, PRODUCT).reshape(*h.shape[:-1], -1)


def project_qkv(
    layer: Layer,
    x: Float[Array, "B T D"],
    cos: Float[Array, "B T h"],
    sin: Float[Array, "B T h"],
    config: Qwen3Config,
) -> tuple[Float[Array, "B T H d"], Float[Array, "B T K d"], Float[Array, "B T K d"]]:
    """Queries and keys, turned (and normed first where the model has the norms), and values of one layer."""
    batch, length, _ = x.shape
    h = rms_norm(x, layer["input_norm"], config.rms_norm_eps)
    q = project(layer, "query", h).reshape(batch, length, config.num_heads, config.head_dim)
    k = project(layer, "key", h).reshape(batch, length, config.num_kv_heads, config.head_dim)
    v = project(layer, "value", h).reshape(batch, length, config.num_kv_heads, config.head_dim)
    if config.qk_norm:
        q = rms_norm(q, layer["query_norm"], config.rms_norm_eps)
        k = rms_norm(k, layer["key_norm"], config.rms_norm_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def finish_layer(
    layer: Layer, x: Float[Array, "B T D"], attended: Float[Array, "B T H d"], config: Qwen3Config
) -> Float[Array, "B T D"]:
    """Output projection, residual, SwiGLU (or experts), residual."""
    valid = jnp.ones(x.shape[:2], bool)
    return finish_layer_with_balance(layer, x, attended, valid, config)[0]


def finish_layer_with_balance(
    layer: Layer,
    x: Float[Array, "B T D"],
    attended: Float[Array, "B T H d"],
    valid: Bool[Array, "B T"],
    config: Qwen3Config,
) -> tuple[Float[Array, "B T D"], Balance | None]:
    """`finish_layer`, and how the router spread the tokens (None without experts). Tokens that are not
    `valid` go to no expert."""
    x = constrain(x + project(layer, "output", attended.reshape(*x.shape[:2], -1)))
    h = rms_norm(x, layer["post_norm"], config.rms_norm_eps)
    if config.experts is not None:
        mixed, balance = moe_mlp(layer, h, valid, config.experts)
        return constrain(x + mixed), balance
    gated = jax.nn.silu(project(layer, "gate", h)) * project(layer, "up", h)
    return constrain(x + project(layer, "down", gated)), None


def embed(weights: Weights, tokens: Int[Array, "B T"], config: Qwen3Config) -> Float[Array, "B T D"]:
    """Input embeddings in the compute type. Ids must be in the vocabulary: JAX clamps what is not."""
    return constrain(gather_for_lookup(weights["embedding"])[tokens].astype(config.dtype))


def forward(
    weights: Weights,
    config: Qwen3Config,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    prefixes: SharedPrefixes | None = None,
) -> Float[Array, "B N D"]:
    """The whole model without the output matrix; see `Qwen3.__call__`."""
    return forward_with_balance(weights, config, tokens, positions, segment_ids, prefixes)[0]


def forward_with_balance(
    weights: Weights,
    config: Qwen3Config,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    prefixes: SharedPrefixes | None = None,
) -> tuple[Float[Array, "B N D"], Balance | None]:
    """`forward`, and the routers' balance per row, mean over layers (None without experts). Prefixes that lie
    apart are not in it."""
    if prefixes is not None:
        return _forward_after(weights, config, tokens, positions, segment_ids, prefixes)
    valid = segment_ids != PADDING_SEGMENT
    cos, sin = rotary(positions, config)
    attention = _attention(config)
    project_in, finish = _lean(config)

    def step(x: Array, layer: Layer) -> tuple[Array, Balance | None]:
        q, k, v = project_in(layer, x, cos, sin)
        attended = attention(q, k, v, segment_ids)
        return finish(layer, x, attended, valid)

    body = _recomputed(step, config)
    x, balance = jax.lax.scan(body, embed(weights, tokens, config), weights["layers"])
    return rms_norm(x, weights["final_norm"], config.rms_norm_eps), _over_layers(balance)


def _over_layers(balance: Balance | None) -> Balance | None:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), balance)


def _recomputed(step: Callable[..., Any], config: Qwen3Config) -> Callable[..., Any]:
    """A layer's step under the config's choice of what the backward pass computes again."""
    if not config.remat:
        return step
    policies = jax.checkpoint_policies
    keep = {
        "nothing": policies.nothing_saveable,
        "products": policies.save_only_these_names(PRODUCT),
        "everything": policies.everything_saveable,
    }
    return jax.checkpoint(step, policy=keep[config.remat_saves])


def _lean(config: Qwen3Config) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`project_qkv` and `finish_layer_with_balance` without their last argument. Of what they compute, the
    backward pass is left the results of projections only: norms, rotations and the activation are cheaper to
    compute again than to write and read (half the memory; on a CPU faster too). Not so under `remat`, which
    keeps less, and for the experts' part, where sorting and collectives would come again.
    """
    project_in: Any = partial(project_qkv, config=config)
    finish: Any = partial(finish_layer_with_balance, config=config)
    if config.remat:
        return project_in, finish
    keep = jax.checkpoint_policies.save_only_these_names(PRODUCT)
    # a scan's backward pass is a loop of its own: nothing there can be merged with the forward pass
    lean = partial(jax.checkpoint, policy=keep, prevent_cse=False)
    return lean(project_in), finish if config.experts is not None else lean(finish)


def _attention(config: Qwen3Config) -> Callable[..., Array]:
    return partial(attend, kernel=config.attention, chunk=config.attention_chunk)


def _forward_after(
    weights: Weights,
    config: Qwen3Config,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    prefixes: SharedPrefixes,
) -> tuple[Float[Array, "B T+1 D"], Balance | None]:
    """`forward_with_balance` of rows whose prefixes are computed once, in rows of their own."""
    turns = rotary(positions, config)
    attention = _attention(config)
    project_in, finish = _lean(config)
    places = jnp.broadcast_to(jnp.arange(prefixes.tokens.shape[1], dtype=jnp.int32), prefixes.tokens.shape)
    prefix_turns = rotary(places, config)
    prefix_segments = jnp.where(places < prefixes.lengths[:, None], PREFIX_SEGMENT, PADDING_SEGMENT)
    key_segments = jnp.concatenate([prefix_segments[prefixes.row_prefix], segment_ids], axis=1)

    # A product instead of a gather: its gradient is a product too, where a scatter-add adds one by one.
    chosen = jax.nn.one_hot(prefixes.row_prefix, prefixes.tokens.shape[0], dtype=config.dtype)

    def of_rows(x: Array) -> Array:
        return jnp.einsum("be,e...->b...", chosen, x)

    valid, prefix_valid = segment_ids != PADDING_SEGMENT, prefix_segments != PADDING_SEGMENT

    def step(carry: tuple[Array, Array], layer: Layer) -> tuple[tuple[Array, Array], Balance | None]:
        x, shared = carry
        q, k, v = project_in(layer, shared, *prefix_turns)
        attended = attention(q, k, v, prefix_segments)
        shared, _ = finish(layer, shared, attended, prefix_valid)
        q, own_k, own_v = project_in(layer, x, *turns)
        k = jnp.concatenate([of_rows(k), own_k], axis=1)
        v = jnp.concatenate([of_rows(v), own_v], axis=1)
        attended = attention(q, k, v, segment_ids, key_segments=key_segments)
        x, balance = finish(layer, x, attended, valid)
        return (x, shared), balance

    body = _recomputed(step, config)
    start = embed(weights, tokens, config), embed(weights, prefixes.tokens, config)
    (x, shared), balance = jax.lax.scan(body, start, weights["layers"])
    last = shared[jnp.arange(shared.shape[0]), jnp.maximum(prefixes.lengths - 1, 0)]
    x = jnp.concatenate([last[prefixes.row_prefix][:, None], x], axis=1)
    return rms_norm(x, weights["final_norm"], config.rms_norm_eps), _over_layers(balance)
