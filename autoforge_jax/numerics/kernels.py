"""Attention by a platform's own kernel, with the meaning of `numerics.attention.segment_attention`.

* ``cudnn``: NVIDIA's flash attention through `jax.nn.dot_product_attention`; 16-bit types. Who sees whom goes
  in as a mask of one row of booleans for all heads.
* ``splash``: the block-sparse flash kernel for TPUs that JAX ships (Pallas). It knows equal segments only, so
  samples cannot share one copy of a prefix (`batch.share_prefix = false`).
* ``xla``: `segment_attention` itself, anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from autoforge_jax.config import Config
from autoforge_jax.errors import ConfigError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.sharding import active_layout
from autoforge_jax.numerics.attention import PADDING_SEGMENT, segment_attention, visible

Kernel = Literal["xla", "cudnn", "splash"]
SPLASH_BLOCK = 512
"""Queries and keys per block at most; a row's length must be a multiple of `SPLASH_LANES`."""
SPLASH_LANES = 128


def choose_kernel(
    wanted: Literal["auto", "xla", "cudnn", "splash"],
    *,
    platform: str,
    dtype: str,
    head_dim: int,
    row_tokens: int,
    shared_prefixes: bool,
) -> Kernel:
    """The kernel of a run. `auto` takes the platform's own where it can be used, else `xla`. ConfigError when
    a kernel is asked for by name that cannot be used here, with the reason."""
    cudnn = {
        f"this machine has {platform}, no NVIDIA GPU": platform not in ("gpu", "cuda"),
        f"model.dtype is {dtype}, it takes bfloat16": dtype != "bfloat16",
        f"head_dim is {head_dim}, it takes multiples of 8 up to 256": head_dim % 8 != 0 or head_dim > 256,
    }
    splash = {
        f"this machine has {platform}, no TPU": platform != "tpu",
        "samples share prefixes; set batch.share_prefix = false": shared_prefixes,
        f"batch.row_tokens is {row_tokens}, it takes multiples of {SPLASH_LANES}": row_tokens % SPLASH_LANES
        != 0,
    }
    faults = {
        name: [reason for reason, wrong in reasons.items() if wrong]
        for name, reasons in (("cudnn", cudnn), ("splash", splash))
    }
    if wanted == "auto":
        return "cudnn" if not faults["cudnn"] else "splash" if not faults["splash"] else "xla"
    if faults.get(wanted):
        raise ConfigError(f"model.attention is {wanted!r}, but {'; '.join(faults[wanted])}")
    return wanted


def kernel_of(config: Config, shape: Qwen3Config, platform: str) -> Kernel:
    """`choose_kernel` for the learner of a config."""
    return choose_kernel(
        config.model.attention,
        platform=platform,
        dtype=shape.dtype,
        head_dim=shape.head_dim,
        row_tokens=config.batch.row_tokens,
        shared_prefixes=config.batch.share_prefix,
    )


def attend(
    q: Float[Array, "B T H d"],
    k: Float[Array, "B S K d"],
    v: Float[Array, "B S K d"],
    segment_ids: Int[Array, "B T"],
    *,
    kernel: Kernel,
    chunk: int,
    key_segments: Int[Array, "B S"] | None = None,
) -> Float[Array, "B T H d"]:
    """`segment_attention` by `kernel`. Keys of another row (`key_segments`) are not for splash: xla then."""
    if kernel == "cudnn":
        return masked_attention(q, k, v, segment_ids, key_segments, implementation="cudnn")
    if kernel == "splash" and key_segments is None:
        return _on_every_device(partial(splash_attention, interpret=False))(q, k, v, segment_ids)
    # Rows on several devices are computed side by side; one after another is for the cache of one CPU.
    by_row = False if active_layout() is not None else None
    return segment_attention(q, k, v, segment_ids, chunk=chunk, key_segments=key_segments, by_row=by_row)


def masked_attention(
    q: Float[Array, "B T H d"],
    k: Float[Array, "B S K d"],
    v: Float[Array, "B S K d"],
    segment_ids: Int[Array, "B T"],
    key_segments: Int[Array, "B S"] | None = None,
    *,
    implementation: Literal["cudnn", "xla"],
) -> Float[Array, "B T H d"]:
    """`segment_attention` through `jax.nn.dot_product_attention`."""
    keys = segment_ids if key_segments is None else key_segments
    mask = visible(segment_ids, keys, k.shape[1] - q.shape[1])
    # A softmax over nothing is not a number, in the gradient too: such a query sees one key and is zeroed.
    blind = ~jnp.any(mask, axis=-1, keepdims=True)
    first = (jnp.arange(k.shape[1]) == 0)[None, None, :]
    with _mask_without_gradient() if implementation == "cudnn" else nullcontext():
        out = jax.nn.dot_product_attention(
            q, k, v, mask=(mask | (blind & first))[:, None], implementation=implementation
        )
    return jnp.where(blind[..., None], jnp.zeros((), out.dtype), out)


@contextmanager
def _mask_without_gradient() -> Iterator[None]:
    """While cuDNN's attention is traced: no gradient of its mask. JAX makes a bias of the mask and always
    asks for that bias's gradient, which nobody reads; in cuDNN it costs a workspace of 2 bytes × rows × heads
    × T × S (4.4 GB for 2 rows, 16 heads and 8,192 tokens; 0.3 GB without)."""
    from jax._src.cudnn import fused_attention_stablehlo  # JAX has no public way to say it

    original = fused_attention_stablehlo.should_export_dbias
    fused_attention_stablehlo.should_export_dbias = lambda *_: False
    try:
        yield
    finally:
        fused_attention_stablehlo.should_export_dbias = original


def splash_attention(
    q: Float[Array, "B T H d"],
    k: Float[Array, "B T K d"],
    v: Float[Array, "B T K d"],
    segment_ids: Int[Array, "B T"],
    *,
    interpret: bool,
) -> Float[Array, "B T H d"]:
    """`segment_attention` of rows without a shared prefix, by JAX's splash kernel. interpret: run it as plain
    operations (tests on CPU)."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    rows, length, heads, width = q.shape
    block = max(b for b in range(SPLASH_LANES, SPLASH_BLOCK + 1, SPLASH_LANES) if length % b == 0)
    sizes = kernels.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
        block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip
    shared = k.shape[2]
    mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * (heads // shared))
    kernel: Any = kernels.make_splash_mqa(
        mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
    )
    # Query heads by the key/value head that they share, which is read where it lies instead of repeated.
    q = (q * jnp.asarray(width**-0.5, q.dtype)).reshape(rows, length, shared, heads // shared, width)
    q, k, v = q.transpose(0, 2, 3, 1, 4), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    segments = kernels.SegmentIds(q=segment_ids, kv=segment_ids)
    out = jax.vmap(jax.vmap(kernel, in_axes=(0, 0, 0, None)))(q, k, v, segments)
    out = out.transpose(0, 3, 1, 2, 4).reshape(rows, length, heads, width).astype(k.dtype)
    padding = (segment_ids == PADDING_SEGMENT)[:, :, None, None]
    return jnp.where(padding, jnp.zeros((), out.dtype), out)


def _on_every_device(function: Any) -> Any:
    """The kernel on each device's own rows and heads: the compiler cannot cut it."""
    layout = active_layout()
    if layout is None:
        return function
    rules = dict(layout.rules)
    split = PartitionSpec(rules["rows"], None, rules["heads"], None)
    return jax.shard_map(
        function,
        mesh=layout.mesh,
        in_specs=(split, split, split, PartitionSpec(rules["rows"], None)),
        out_specs=split,
        check_vma=False,
    )
