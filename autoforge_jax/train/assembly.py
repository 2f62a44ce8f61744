"""Puts the learner and the engine of one run together: model, parameters, optimisers, checkpoints, weight
hand-over.

Policy versions count optimiser steps since the beginning (warm start, then ERPO), so a version names one set
of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import SingleDeviceSharding

from autoforge_jax import compilation
from autoforge_jax.data.batch import Batch
from autoforge_jax.errors import CheckpointError
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.hf_config import stored_shape
from autoforge_jax.model.lora import frozen_copy, init_adapters, merge
from autoforge_jax.model.qwen3 import Qwen3
from autoforge_jax.model.retrieval_init import retrieval_weights
from autoforge_jax.model.sharding import Layout, gather_to_host, make_layout
from autoforge_jax.numerics.kernels import kernel_of
from autoforge_jax.plan.chips import chip_named
from autoforge_jax.plan.possible import check_vocabulary
from autoforge_jax.rollout.conditions import Conditions
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.engine_layout import engine_layout
from autoforge_jax.rollout.engine_rows import prefix_rows
from autoforge_jax.rollout.policy import Engine
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.train.checkpoint import CheckpointMeta, CheckpointStore
from autoforge_jax.train.crew import Crew
from autoforge_jax.train.disk_sync import DiskSync
from autoforge_jax.train.forward import Adapted, Forward, adapted_forward, forward_of
from autoforge_jax.train.instruments import StepTrace, compile_clock, device_memory_gb, host_memory_gb
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.phase_synthesis import Environments
from autoforge_jax.train.rundir import RunDir
from autoforge_jax.train.state import Params, TrainState, init_state
from autoforge_jax.train.throughput import Meter
from autoforge_jax.train.together import batches_digest, shared_episodes
from autoforge_jax.train.weight_sync import SyncReport, leaf_checksums, sync_weights, total_checksum

WAITED_FOR_BYTES = 2**28
"""On the CPU backend, states larger than this are written before training goes on: the copy that is being
written would lie in the same memory as the next update, and both would run on the same cores."""
FROZEN = "frozen_checksum"
"""Key in a checkpoint's `extra`: which model its adapters belong to."""
MIN_COMPILE_S = 0.5
"""Programs that compile faster are not worth a file in the compile cache."""


def use_compile_cache(folder: str) -> None:
    """Keep compiled programs in `folder` between runs; an empty name turns the cache off."""
    if folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_S)


def create_params(
    config: Qwen3Config, seed: int, layout: Layout | None
) -> tuple[nnx.GraphDef[Qwen3], Params]:
    """(graphdef, parameters) of a model drawn with `seed`: the same numbers on every mesh, each device
    drawing its own part."""

    def make() -> Qwen3:
        return Qwen3(config, rngs=nnx.Rngs(seed))

    if layout is None:
        graphdef, params = nnx.split(make(), nnx.Param)
        return graphdef, params
    graphdef, shapes = nnx.split(nnx.eval_shape(make), nnx.Param)
    draw = compilation.jit(lambda: nnx.split(make(), nnx.Param)[1], out_shardings=layout.of_state(shapes))
    return graphdef, draw()


def abstract_model(config: Qwen3Config) -> tuple[nnx.GraphDef[Qwen3], Params]:
    """(graphdef, shapes) of a model; nothing is drawn."""
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: Qwen3(config, rngs=nnx.Rngs(0))), nnx.Param)
    return graphdef, shapes


def abstract_graph(config: Qwen3Config) -> nnx.GraphDef[Qwen3]:
    """The graphdef of a model whose parameters come from elsewhere; nothing is drawn."""
    return abstract_model(config)[0]


class Assembly:
    """Model, engine and checkpoint stores of one run, made once and used by all its phases."""

    def __init__(
        self, run: RunDir, renderer: Renderer, environments: Environments, crew: Crew | None = None
    ) -> None:
        config = run.config
        self.conditions = Conditions.of(config)
        use_compile_cache(config.run.compile_cache)
        self.run, self.config, self.renderer = run, config, renderer
        self._clock = compile_clock()
        self.crew = crew or Crew()
        self.run_episodes = shared_episodes(self.crew, by_all=config.rollout.engine == "jax")
        """`rollout.episode.run_episodes`, by all processes together."""
        self._stores: dict[str, CheckpointStore] = {}
        self._bundle_hashes = environments.hashes
        self.model_config = self._model()
        self.layout = make_layout(config.mesh, self.model_config, config.batch.rows_per_microbatch)
        self.graphdef, self._shapes = abstract_model(self.model_config)
        self.frozen: Params | None = None
        """With `[lora]`: the model, in the compute type; what is trained, saved and handed around as "params"
        are then its adapters."""
        self.forward: Forward = forward_of(self.graphdef)
        if config.lora.rank:
            self._freeze()
        self.engine: Engine
        self._hand_over: Callable[[Params, int], SyncReport]
        self._disk_sync: DiskSync | None = None
        self.last_sync: SyncReport | None = None
        """The newest hand-over."""
        if config.rollout.engine == "sglang":
            self._disk_sync = DiskSync(
                run,
                renderer.tokenizer,
                self.model_config,
                lambda: self._in_one_process(self.whole(self.initial_params())),
                self.crew,
            )
            self.engine, self._hand_over = self._disk_sync.engine, self._disk_sync.push
        else:
            engine = JaxEngine(
                self.graphdef,
                self.model_config,
                slots=config.rollout.slots,
                max_length=config.rollout.max_trajectory_tokens,
                pad_id=renderer.tokenizer.pad_id,
                layout=engine_layout(self.layout),
                prefixes=prefix_rows(len(environments.all)),
                prefix_tokens=max((len(renderer.prefix(b)) for b in environments.all), default=0),
            )
            self.engine = engine
            self._hand_over = lambda params, version: sync_weights(params, version, engine)
        self.sft_optimizer = make_optimizer(config.sft.optimizer, config.sft.steps)
        self.erpo_optimizer = make_optimizer(
            config.erpo.optimizer, config.erpo.steps * config.erpo.minibatches
        )

    def _model(self) -> Qwen3Config:
        """The model's shape: of `[model]`, or of the folder that `model.init_from` names."""
        tokenizer, folder = self.renderer.tokenizer, self.config.model.init_from
        if not folder:
            return self._with_kernel(Qwen3Config.from_model_config(self.config.model, tokenizer.vocab_size))
        shape = stored_shape(Path(folder), self.config.model)
        check_vocabulary(tokenizer, shape, Path(folder))
        return self._with_kernel(shape)

    def _with_kernel(self, shape: Qwen3Config) -> Qwen3Config:
        kernel = kernel_of(self.config, shape, jax.default_backend())
        return replace(shape, attention=kernel)

    # ------------------------------------------------------------------------------------------ parameters
    def _begin(self) -> Params:
        """The model before any training, read from `model.init_from` or drawn with `run.seed`."""
        config = self.config
        if config.model.init_from:
            from autoforge_jax.model.load_hf import load_hf

            return load_hf(Path(config.model.init_from), self.model_config, self.layout)
        # The retrieval start is worked out on the host from the whole draw: such models are small.
        retrieval = config.model.init == "retrieval"
        _, params = create_params(self.model_config, config.run.seed, None if retrieval else self.layout)
        if not retrieval:
            return params
        tokenizer = self.renderer.tokenizer
        pieces = [tokenizer.decode([index]) for index in range(tokenizer.vocab_size)]
        started = retrieval_weights(nnx.to_pure_dict(params), self.model_config, pieces, config.run.seed)
        nnx.replace_by_pure_dict(params, started)
        return params if self.layout is None else self.layout.place(params, self.layout.of_state(params))

    def _draw_adapters(self) -> Params:
        return init_adapters(self.model_config, self.config.lora, self.config.run.seed)

    def _freeze(self) -> None:
        """The model becomes `frozen`; what is trained are adapters."""
        self.frozen = compilation.jit(lambda params: frozen_copy(params, self.model_config))(self._begin())
        self._shapes = jax.eval_shape(self._draw_adapters)
        self.forward = adapted_forward(self.model_config, self.config.lora.scale)

    def initial_params(self) -> Params:
        """The parameters before any training, made anew at every call: read from `model.init_from`, or drawn
        with `run.seed`. Nothing here keeps them, since most of a run has no use for them."""
        if self.frozen is None:
            return self._begin()
        places = None if self.layout is None else self.layout.of_state(self._shapes)
        return compilation.jit(self._draw_adapters, out_shardings=places)()

    def whole(self, params: Params) -> Params:
        """The model of these parameters: themselves, or the frozen model with the adapters merged in."""
        return params if self.frozen is None else merge(self.frozen, params, self.config.lora.scale)

    def for_forward(self, params: Params) -> Params:
        """What `forward` takes."""
        return params if self.frozen is None else Adapted(self.frozen, params)

    def fresh_state(self, phase: str, params: Params | None = None) -> TrainState:
        """Step 0 of `sft` or `erpo` from `params` (the initial ones when not given)."""
        optimizer = self.sft_optimizer if phase == "sft" else self.erpo_optimizer
        return init_state(self.initial_params() if params is None else params, optimizer, self.layout)

    def sync(self, params: Params, version: int) -> SyncReport:
        """Hand parameters to the engine and prove that they arrived.

        With several processes each has an embedded engine of its own with the whole model, and all of them
        must hold the same weights; servers are handed theirs by the first process. The embedded engine gets
        matrices in the compute type, in which it uses them: half the memory, and no cast in every program.
        """
        params = self.whole(params)
        if self._disk_sync is None:
            params = frozen_copy(params, self.model_config)
        if self.crew.count == 1:
            self.last_sync = self._hand_over(params, version)
            return self.last_sync
        whole = self._in_one_process(params)
        if self._disk_sync is None:
            self.last_sync = self._hand_over(whole, version)
            self.crew.agree(f"weights of version {version}", f"{self.last_sync.checksum:08x}")
        else:
            self.last_sync = self.crew.of_first("weights", lambda: self._hand_over(whole, version))
        return self.last_sync

    def _in_one_process(self, params: Params) -> Params:
        """The whole parameters in each of several processes; called by all of them together."""
        if self.crew.count == 1:
            return params
        host = gather_to_host(params)
        layout = engine_layout(self.layout)
        if layout is None:
            return jax.tree.map(jax.numpy.asarray, host)
        return jax.tree.map(jax.device_put, host, layout.of_state(host))  # not all on its first device

    def rest(self) -> None:
        """After rollouts whose weights will be handed over anew before the next ones: the engine gives back
        the memory that the learner's update needs. The embedded one lets go of its copy of the weights and of
        its caches, servers on the learner's chip of all they hold (`rollout.sglang.share_device`).

        Nothing when rollouts go on beside learning.
        """
        if self.config.erpo.max_staleness:
            return
        if isinstance(self.engine, JaxEngine):
            self.engine.unload()
        if self._disk_sync is not None and self.crew.first:
            self._disk_sync.rest()

    def agree_on_batches(self, batches: Sequence[Batch]) -> None:
        """TrainingError that names the process whose batches are not those of the others."""
        if self.crew.count > 1:
            self.crew.agree("batches", batches_digest(batches))

    def meter(self) -> Meter:
        """Counts the work of a phase's steps; MFU where `mesh.chip` names an accelerator."""
        mesh, model = self.config.mesh, self.model_config
        peak = None if mesh.chip == "cpu" else chip_named(mesh.chip).peak(model.dtype) * mesh.size
        return Meter(model, peak, 0 if self.frozen is None else self.parameters)

    def machine_metrics(self) -> dict[str, float]:
        """Compilation so far in this process, its peak memory on the host, the device's where it tells."""
        memory = device_memory_gb()
        known = {"host_memory_gb": host_memory_gb()}
        if memory is not None:
            known["device_memory_gb"] = memory
        return known | {"xla_compiles": self._clock.count, "compile_seconds": self._clock.seconds}

    def trace(self, phase: str) -> StepTrace:
        """The profiler trace of a phase, as `[run]` asks for it."""
        run = self.config.run
        return StepTrace(self.run.trace / phase, run.trace_step, run.trace_steps)

    def close(self) -> None:
        """Let go of the engine and the checkpoint writers; servers that the run started are stopped."""
        try:
            for store in self._stores.values():
                store.close()
        finally:
            if self._disk_sync is not None:
                self._disk_sync.close()

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""
        return sum(leaf.size for leaf in jax.tree.leaves(self._shapes))

    # ------------------------------------------------------------------------------------------ checkpoints
    def store(self, phase: str) -> CheckpointStore:
        """Checkpoints of `sft` or `erpo`."""
        if phase not in self._stores:
            self._stores[phase] = CheckpointStore(
                self.run.checkpoints(phase), self.config.erpo.keep_checkpoints, self.crew
            )
        return self._stores[phase]

    def save(
        self, phase: str, state: TrainState, step: int, version: int, cursor: Mapping[str, Any] | None = None
    ) -> None:
        """Begin to save the state after `step` steps of a phase (`saved` waits for it). `cursor`: what else
        decides the steps to come (plain values)."""
        meta = CheckpointMeta(
            phase=phase,
            step=step,
            policy_version=version,
            # every random number of learner, sampler and environments is a function of one of these and of
            # the step, the task and the attempt: there is no generator whose state could be lost
            seeds={"run": self.config.run.seed, "synthesis": self.config.synthesis.seed},
            # tasks and order are functions of (seed, step) and of what the phase adds
            cursor={"next_step": step, **(cursor or {})},
            config_hash=self._key(phase),
            bundle_hashes=self._bundle_hashes,
            extra={} if self.frozen is None else {FROZEN: self._frozen_checksum},
        )
        self.store(phase).start(state, meta)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        if jax.default_backend() == "cpu" and size > WAITED_FOR_BYTES:
            self.store(phase).wait()

    def saved(self) -> None:
        """Wait until every checkpoint that was begun is on disk. CheckpointError when one could not be
        written."""
        for store in self._stores.values():
            store.wait()

    def restore(self, phase: str) -> tuple[TrainState, CheckpointMeta] | None:
        """The newest checkpoint of a phase, None when it has none. CheckpointError when it belongs to another
        run."""
        store = self.store(phase)
        store.wait()
        newest = self.crew.of_first("newest checkpoint", store.latest)
        if newest is None:
            return None
        if self.frozen is not None and newest.meta.extra.get(FROZEN) != self._frozen_checksum:
            raise CheckpointError(
                f"{newest.path} holds adapters of another model than {self.config.model.init_from!r} is now "
                f"(checksum {newest.meta.extra.get(FROZEN)}, expected {self._frozen_checksum}); restore that "
                "folder or start a new run"
            )

        return store.restore(
            self._shape_of_state(phase),
            config_hash=self._key(phase),
            bundle_hashes=self._bundle_hashes,
            checkpoint=newest,
        )

    def _shape_of_state(self, phase: str) -> Any:
        """What `fresh_state` would be, as shapes and shardings: a restore fills no second state."""
        optimizer = self.sft_optimizer if phase == "sft" else self.erpo_optimizer
        shapes = jax.eval_shape(lambda params: init_state(params, optimizer), self._shapes)
        if self.layout is None:
            places = jax.tree.map(lambda _: SingleDeviceSharding(jax.devices()[0]), shapes)
        else:
            places = self.layout.of_state(shapes)
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places
        )

    @cached_property
    def _frozen_checksum(self) -> int:
        return total_checksum(leaf_checksums(self.frozen))

    def _key(self, phase: str) -> str:
        return self.run.keys["warm start" if phase == "sft" else "erpo"]
