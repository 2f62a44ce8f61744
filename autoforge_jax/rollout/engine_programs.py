"""The programs that the embedded engine compiles: what they are, and their lowering without a single array.

`engine_programs` lowers them for devices that need not be here: `Lowered.compile` then says what they would
need there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp

from autoforge_jax import compilation
from autoforge_jax.model.cached import TILE, Rows, Sampling, decode, new_store, prefill
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import parameter_shapes
from autoforge_jax.model.sharding import Layout
from autoforge_jax.rollout.engine_layout import store_shardings
from autoforge_jax.rollout.engine_rows import (
    BLOCK,
    CHUNK,
    DECODE_WIDTH,
    PREFILL_WIDTH,
    STOP_WIDTH,
    EngineSize,
)


@dataclass(frozen=True)
class Programs:
    """Jitted functions of one engine."""

    new_store: Any
    """() -> `KVStore`, empty."""
    prefill: Any
    """`model.cached.prefill` without its config; the store is donated."""
    decode: Any
    """`model.cached.decode` without config and block; the store is donated."""

    @classmethod
    def of(cls, config: Qwen3Config, size: EngineSize, layout: Layout | None) -> Programs:
        """Nothing is traced or compiled yet. layout: of several devices, or of one that is not here."""
        make_store = partial(new_store, config, size.store_rows, size.capacity)
        place: Any = None if layout is None else store_shardings(layout, jax.eval_shape(make_store))
        rest = None if layout is None else layout.replicated
        return cls(
            new_store=make_store if layout is None else compilation.jit(make_store, out_shardings=place),
            prefill=compilation.jit(
                partial(_within(layout, prefill), config=config),
                older_emitters=False,
                static_argnames=("own_width", "prefix_width"),
                donate_argnums=1,
                out_shardings=place,
            ),
            decode=compilation.jit(
                partial(_within(layout, decode), config=config, block=BLOCK),
                older_emitters=False,
                static_argnames=("own_width", "prefix_width", "filtered"),
                donate_argnums=1,
                out_shardings=None if layout is None else (place, rest),
            ),
        )

    def compiled(self) -> int:
        """Programs compiled by now."""
        return self.prefill._cache_size() + self.decode._cache_size()


def engine_programs(config: Qwen3Config, size: EngineSize, layout: Layout) -> dict[str, jax.stages.Lowered]:
    """Every kind of program of an engine, in its largest shape, lowered: ``prefill``, ``decode``, and
    ``decode, filtered`` (with top-k or top-p). An engine compiles them in a few smaller shapes too.

    layout: of the engine (`rollout.engine_layout`); its devices need not be here, and one is enough. Under
    `compilation.compiling_for` when they are another platform's.
    """
    programs = Programs.of(config, size, layout)
    tiles = size.buckets[-1]
    batch = tiles * TILE

    def shape(*sizes: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=layout.replicated)

    weights = abstract_weights(config, layout)
    empty: Any = jax.eval_shape(partial(new_store, config, size.store_rows, size.capacity))
    store = jax.tree.map(_placed, empty, store_shardings(layout, empty))
    rows = Rows(shape(batch), shape(batch), shape(tiles), shape(tiles))
    sampling = Sampling(
        uniform=shape(batch, BLOCK, dtype=jnp.float32),
        temperature=shape(batch, dtype=jnp.float32),
        top_k=shape(batch),
        top_p=shape(batch, dtype=jnp.float32),
        stop_ids=shape(batch, STOP_WIDTH),
        budget=shape(batch),
    )
    prefix_width = size.prefix_width(size.prefix_tokens)

    def decoding(filtered: bool) -> jax.stages.Lowered:
        return programs.decode.lower(
            weights,
            store,
            rows,
            shape(batch),
            sampling,
            shape(),
            own_width=size.own_width(size.max_length, DECODE_WIDTH),
            prefix_width=prefix_width,
            filtered=filtered,
        )

    return {
        "prefill": programs.prefill.lower(
            weights,
            store,
            rows,
            shape(batch, CHUNK),
            own_width=size.own_width(size.max_length, PREFILL_WIDTH),
            prefix_width=prefix_width,
        ),
        "decode": decoding(filtered=False),
        "decode, filtered": decoding(filtered=True),
    }


def _within(layout: Layout | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, traced for a layout: what asks `active_layout` then knows where arrays lie."""
    if layout is None:
        return function

    @wraps(function)
    def traced(*args: Any, **static: Any) -> Any:
        with layout.active():
            return function(*args, **static)

    return traced


def abstract_weights(config: Qwen3Config, layout: Layout) -> dict[str, Any]:
    """`model.qwen3.Weights` as an engine on `layout` is handed them: shapes with shardings; matrices in the
    compute type, norm scales in float32."""
    tree: dict[str, Any] = {"layers": {}}
    for path, shape in parameter_shapes(config).items():
        part = tree["layers"] if path.startswith("layers/") else tree
        dtype = jnp.float32 if "norm" in path else config.dtype
        part[path.removeprefix("layers/")] = jax.ShapeDtypeStruct(shape, dtype)
    return jax.tree.map(_placed, tree, layout.of_state(tree))


def _placed(leaf: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
