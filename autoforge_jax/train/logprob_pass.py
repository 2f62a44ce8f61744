"""Log-probs of batches without a gradient: of the policy before an update, and of the reference policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax

from autoforge_jax import compilation
from autoforge_jax.data.batch import Batch
from autoforge_jax.model.sharding import Layout
from autoforge_jax.numerics.logprobs import DEFAULT_CHUNK
from autoforge_jax.train.forward import Forward, batch_logprobs, on_layout
from autoforge_jax.train.state import Params

OldLogprobs = Callable[[Params, Sequence[Batch]], list[tuple[Batch, jax.Array]]]
"""What a `LogprobPass` is to those who call it; with adapters, one that puts the model beside them first."""


class LogprobPass:
    """Log-probs of batches under given parameters, without a gradient: one program for all calls."""

    def __init__(
        self,
        forward: Forward,
        temperature: float,
        *,
        chunk_size: int = DEFAULT_CHUNK,
        layout: Layout | None = None,
    ) -> None:
        self._layout = layout

        def logprobs(params: Params, batch: Batch) -> jax.Array:
            with on_layout(layout):
                return batch_logprobs(forward, params, batch, temperature, chunk_size).logprobs

        self._function = compilation.jit(logprobs, out_shardings=None if layout is None else layout.rows)

    def __call__(self, params: Params, batches: Sequence[Batch]) -> list[tuple[Batch, jax.Array]]:
        """Each batch (on a mesh: placed on it) with its log-probs [rows, tokens], 0 off the loss mask."""
        if self._layout is not None:
            layout = self._layout
            batches = [layout.place(batch, jax.tree.map(layout.of_rows, batch)) for batch in batches]
        return [(batch, self._function(params, batch)) for batch in batches]


class ReferenceLogprobs:
    """Fills `ref_logprobs` of batches under fixed parameters (the policy before ERPO). Keeps a copy of
    `params`' references only: hand it arrays that no step donates.
    """

    def __init__(
        self,
        forward: Forward,
        params: Params,
        temperature: float,
        *,
        chunk_size: int = DEFAULT_CHUNK,
        layout: Layout | None = None,
    ) -> None:
        self._params = params
        self._pass = LogprobPass(forward, temperature, chunk_size=chunk_size, layout=layout)

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        """The batches with `ref_logprobs` filled in."""
        return [replace(batch, ref_logprobs=found) for batch, found in self._pass(self._params, batches)]
