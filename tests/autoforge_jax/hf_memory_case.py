"""Run by test_hf_files.py in a process of its own with 8 CPU devices: one JSON line of facts about the memory
that reading a checkpoint of many files takes."""

from __future__ import annotations

import gc
import json
import sys
import threading
from pathlib import Path

import jax
import numpy as np

from autoforge_jax.config import MeshConfig
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.experts import Experts
from autoforge_jax.model.hf_files import shard_names, shard_plan
from autoforge_jax.model.load_hf import hf_shapes, load_hf
from autoforge_jax.model.qwen3 import parameter_shapes
from autoforge_jax.model.sharding import make_layout

MODEL = Qwen3Config(
    vocab_size=16_000,
    num_layers=16,
    hidden_size=512,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    tie_embeddings=False,
    dtype="bfloat16",
    experts=Experts(count=8, per_token=2, width=64),
)
SHARD_BYTES = 3_000_000


def anonymous_mb() -> float:
    """Memory of this process that is not backed by files: mapped checkpoints are the kernel's to drop."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


def write(folder: Path) -> int:
    """A checkpoint of many files, one in memory at a time; the number of files."""
    import ml_dtypes
    from safetensors.numpy import save_file

    shapes = hf_shapes(MODEL)
    shards = shard_plan({name: 2 * int(np.prod(shape)) for name, shape in shapes.items()}, SHARD_BYTES)
    rng = np.random.default_rng(0)
    for file, names in zip(shard_names(len(shards)), shards, strict=True):
        part = {n: rng.standard_normal(shapes[n], np.float32).astype(ml_dtypes.bfloat16) for n in names}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**MODEL.to_hf(), "dtype": "bfloat16"}))
    return len(shards)


def main(folder: Path) -> None:
    """Print the facts."""
    files = write(folder)
    layout = make_layout(MeshConfig(fsdp=2, expert=4), MODEL, 8)
    assert layout is not None
    load_small = jax.device_put(np.zeros(8, np.float32), layout.rows)  # the runtime's own memory
    load_small.block_until_ready()
    gc.collect()
    before = anonymous_mb()
    peak, done = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_mb())

    thread = threading.Thread(target=watch)
    thread.start()
    params = load_hf(folder, MODEL, layout)
    jax.block_until_ready(params)
    done.set()
    thread.join()
    sizes = [4 * int(np.prod(shape)) / 2**20 for shape in parameter_shapes(MODEL).values()]
    whole = load_hf(folder, MODEL)
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(whole), strict=True)
    layers = {
        leaf.addressable_shards[0].data.size / leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 4
    }
    facts = {
        "files": files,
        "equal": all(np.array_equal(a, b) for a, b in pairs),
        "shares": sorted(layers),
        "devices_mb": sum(sizes),
        "largest_mb": max(sizes),
        "peak_mb": peak - before,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
