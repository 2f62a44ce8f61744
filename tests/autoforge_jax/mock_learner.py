"""What the learner's tests share: trajectories and samples by hand, and a model small enough for numpy.

`table_forward` is a bigram model: the hidden state of a token is its row of a table, so that numpy can work
out every log-prob. `tiny_qwen3` is the real architecture at toy size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from autoforge_jax.config import BatchConfig, OptimizerConfig
from autoforge_jax.data.batch import Batch
from autoforge_jax.model.config import Qwen3Config
from autoforge_jax.model.qwen3 import Qwen3
from autoforge_jax.rollout.ledger import turn_hash
from autoforge_jax.train.forward import forward_of
from autoforge_jax.train.objectives import PolicyObjective, SupervisedObjective
from autoforge_jax.train.optimizer import make_optimizer
from autoforge_jax.train.state import TrainState, init_state
from autoforge_jax.train.step import Forward, TrainStep, make_train_step
from autoforge_jax.types import TrainingSample, Trajectory, TrajectoryGroup, Turn
from envgen.interface import Message, StopReason

VOCABULARY = 24
PREFIX = 5


def trajectory(
    reward: float,
    *,
    task: str = "t0",
    environment: str = "e0",
    index: int = 0,
    body: int = 6,
    **changes: object,
) -> Trajectory:
    """Prefix of 5, two observation tokens, then one action over the rest."""
    length, start = PREFIX + body, PREFIX + 2
    mask = tuple(start <= i for i in range(length))
    fields = {
        "task_id": task,
        "environment_id": environment,
        "environment": f"name of {environment}",
        "sample_index": index,
        "opening": (Message(role="user", content="go"),),
        "turns": (Turn(Message(role="assistant"), (), start, length, "stop"),),
        "token_ids": tuple((i * 7 + index) % VOCABULARY if i >= PREFIX else i for i in range(length)),
        "action_mask": mask,
        "rollout_logprobs": tuple(-1.0 - 0.1 * i if m else math.nan for i, m in enumerate(mask)),
        "prefix_length": PREFIX,
        "reward": reward,
        "success": reward == 1.0,
        "stop_reason": StopReason.USER_DONE,
        "policy_version": 0,
    }
    return as_sampled(Trajectory(**(fields | changes)))  # type: ignore[arg-type]


def as_sampled(trajectory: Trajectory) -> Trajectory:
    """The trajectory with the record that the pool makes of its turns, as if an engine had said all that."""
    turns: list[Turn] = []
    for turn in trajectory.turns:
        context, span = trajectory.contexts[turn.context], slice(turn.action_start, turn.action_end)
        read, said = context.token_ids[: turn.action_start], context.token_ids[span]
        turns.append(replace(turn, seen=turn_hash(read, said, context.rollout_logprobs[span])))
    return replace(trajectory, turns=tuple(turns))


def group(rewards: Sequence[float], *, task: str = "t0", environment: str = "e0") -> TrajectoryGroup:
    """One trajectory per reward."""
    members = tuple(trajectory(r, task=task, environment=environment, index=i) for i, r in enumerate(rewards))
    return TrajectoryGroup(task, environment, members)


def sample(seed: int, body: int, *, environment: int = 0, weight: float = 1.0) -> TrainingSample:
    """Random ids; two observation tokens, then a random action mask that ends with an action."""
    rng = np.random.default_rng([7, seed])
    prefix = np.random.default_rng([3, environment]).integers(0, VOCABULARY, PREFIX)
    mask = (False,) * (PREFIX + 2) + tuple(bool(b) for b in rng.integers(0, 2, body - 3)) + (True,)
    return TrainingSample(
        token_ids=tuple(int(t) for t in (*prefix, *rng.integers(0, VOCABULARY, body))),
        action_mask=mask,
        loss_mask=mask,
        rollout_logprobs=tuple(-3.0 + float(rng.normal()) * 0.3 if m else math.nan for m in mask),
        advantage=float(rng.normal()),
        prefix_length=PREFIX,
        environment_id=f"e{environment}",
        task_id=f"t{seed}",
        group=seed // 2,
        weight=weight,
    )


def samples() -> list[TrainingSample]:
    """Eight samples of two environments, bodies of 5 to 12 tokens."""
    return [sample(i, 5 + i, environment=i % 2) for i in range(8)]


def table_params(seed: int = 0) -> dict[str, jax.Array]:
    """Parameters of the bigram model."""
    rng = np.random.default_rng(seed)
    return {
        "table": jnp.asarray(rng.normal(size=(VOCABULARY, 4)), jnp.float32),
        "out": jnp.asarray(rng.normal(size=(VOCABULARY, 4)), jnp.float32),
    }


def table_forward(params, tokens, positions, segment_ids):  # type: ignore[no-untyped-def]
    """hidden = table[token]; sees nothing but the token itself."""
    return params["table"][tokens], params["out"]


def table_logprobs(params: dict[str, jax.Array], ids: Sequence[int], temperature: float = 1.0) -> np.ndarray:
    """[len(ids)] log-prob of each token given the one before it, in float64; the first is NaN."""
    table, out = np.asarray(params["table"], np.float64), np.asarray(params["out"], np.float64)
    logits = table @ out.T / temperature
    logprobs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    return np.array([math.nan, *(logprobs[a, b] for a, b in itertools.pairwise(ids))])


TINY = Qwen3Config(
    vocab_size=VOCABULARY,
    num_layers=1,
    hidden_size=16,
    intermediate_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
)


@cache
def tiny_split() -> tuple[nnx.GraphDef[Qwen3], nnx.State]:
    """(graphdef, parameters) of a one-layer Qwen3."""
    graphdef, params = nnx.split(Qwen3(TINY, rngs=nnx.Rngs(0)), nnx.Param)
    return graphdef, params


@cache
def tiny_qwen3() -> tuple[Forward, nnx.State]:
    """(forward, parameters) of a one-layer Qwen3."""
    graphdef, params = tiny_split()
    return forward_of(graphdef), params


ROWS = BatchConfig(row_tokens=32, rows_per_microbatch=4)
OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=0.1, schedule="cosine", warmup_steps=2), 40)


@cache
def step_of(objective: SupervisedObjective | PolicyObjective) -> TrainStep:
    """A step of the bigram model, compiled once for all tests that pack with `ROWS`."""
    return make_train_step(table_forward, OPTIMIZER, objective, chunk_size=16)


def fresh_state(seed: int = 0) -> TrainState:
    """The bigram model before its first update."""
    return init_state(table_params(seed), OPTIMIZER)


def arrays(batch: Batch) -> dict[str, np.ndarray]:
    """The fields of a numpy batch."""
    return {name: value for name, value in vars(batch).items() if value is not None}


def leaves(tree: object) -> list[np.ndarray]:
    """Host copies of all leaves."""
    return [np.array(leaf) for leaf in jax.tree.leaves(tree)]
