"""CPU seconds of a decode step and a prefill chunk of the engine, by key/value heads and cache width.

    taskset -c 0 python benchmarks/decode.py

Prints one line per shape: milliseconds of process time, median of the runs after the first (which compiles).
Rows are full (no row ends early), so a step here is the worst case of its width.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from autoforge_jax.model.cached import TILE, KVStore, Rows, Sampling, decode, new_store, prefill
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3, weights_of

ROWS, BLOCK, CHUNK, PREFIX, RUNS = 128, 32, 32, 256, 5


def medians(call: Callable[[KVStore], KVStore], store: KVStore) -> tuple[KVStore, float]:
    """The store after `RUNS` calls, and the median process seconds of all but the first."""
    seconds: list[float] = []
    for _ in range(RUNS):
        began = time.process_time()
        store = jax.block_until_ready(call(store))
        seconds.append(time.process_time() - began)
    return store, statistics.median(seconds[1:])


def main() -> None:
    """Measure all shapes."""
    rng = np.random.default_rng(0)
    for kv_heads in (2, 4):
        config = Qwen3Config(
            vocab_size=1680, num_layers=3, num_heads=4, num_kv_heads=kv_heads, intermediate_size=320
        )
        weights = weights_of(nnx.state(Qwen3(config, rngs=nnx.Rngs(0)), nnx.Param))
        store = new_store(config, ROWS + 17, 768)
        tiles = ROWS // TILE
        rows = Rows(
            np.arange(ROWS, dtype=np.int32),
            np.full(ROWS, 200, np.int32),
            np.full(tiles, ROWS, np.int32),
            np.full(tiles, 200, np.int32),
        )
        sampling = Sampling(
            rng.random((ROWS, BLOCK), np.float32),
            np.ones(ROWS, np.float32),
            np.zeros(ROWS, np.int32),
            np.ones(ROWS, np.float32),
            np.full((ROWS, 4), -1, np.int32),
            np.full(ROWS, BLOCK, np.int32),
        )
        step: Any = jax.jit(
            partial(decode, config=config, block=BLOCK, prefix_width=PREFIX, filtered=False),
            static_argnames=("own_width",),
            donate_argnums=1,
        )
        fill: Any = jax.jit(
            partial(prefill, config=config, own_width=256, prefix_width=PREFIX), donate_argnums=1
        )
        first = np.ones(ROWS, np.int32)
        for width in (256, 512):
            decoded = partial(_decoded, step, weights, rows, first, sampling, width)
            store, seconds = medians(decoded, store)
            print(f"{kv_heads} key/value heads, decode over {width}: {seconds / BLOCK * 1e3:.1f} ms a step")
        chunk = np.ones((ROWS, CHUNK), np.int32)
        store, seconds = medians(partial(_filled, fill, weights, rows, chunk), store)
        print(f"{kv_heads} key/value heads, prefill of {ROWS} x {CHUNK} tokens: {seconds * 1e3:.0f} ms")


def _decoded(
    step: Any,
    weights: Any,
    rows: Rows,
    first: np.ndarray,
    sampling: Sampling,
    width: int,
    store: KVStore,
) -> KVStore:
    return step(weights, store, rows, first, sampling, np.int32(0), own_width=width)[0]


def _filled(fill: Any, weights: Any, rows: Rows, chunk: np.ndarray, store: KVStore) -> KVStore:
    return fill(weights, store, rows, chunk)


if __name__ == "__main__":
    main()
