"""SampleRequest -> the body of `/generate`, and its answer -> SampleOutput: the meaning of both sides.

Meaning of the log-probs, read in SGLang 0.5.23's sampler and tested against it: softmax(logits / temperature)
before top-k and top-p, and for greedy decoding that of temperature 1: the same as the embedded engine's
(`types.SamplingParams`). A server started with SGLANG_RETURN_ORIGINAL_LOGPROB reports temperature 1 always;
the agreement metrics of a training step show it.
"""

from __future__ import annotations

from typing import Any

from autoforge_jax.errors import LedgerError, PolicyError
from autoforge_jax.rollout.sglang_http import GenerateReply
from autoforge_jax.types import SampleOutput, SampleRequest, SamplingParams

_GREEDY_BELOW = 1e-6
"""SGLang samples greedily below this temperature."""


def check_params(params: SamplingParams, where: str) -> None:
    """PolicyError for settings that SGLang has no equal of."""
    if params.max_turn_tokens < 1:
        raise PolicyError(f"{where}: max_turn_tokens {params.max_turn_tokens}, expected at least 1")
    if params.temperature < 0 or 0 < params.temperature < _GREEDY_BELOW:
        raise PolicyError(
            f"{where}: temperature {params.temperature:g}; SGLang takes 0 (greedy) or at least "
            f"{_GREEDY_BELOW:g}"
        )
    if params.temperature > 0 and params.top_k > 0 and params.top_p < 1:
        raise PolicyError(
            f"{where}: top_k {params.top_k} together with top_p {params.top_p:g}: SGLang takes both shares "
            "of the whole distribution, the embedded engine takes top_p of what top_k left. Use one of the "
            "two"
        )


def generate_body(request: SampleRequest, rid: str, max_new_tokens: int) -> dict[str, Any]:
    """The JSON of one `/generate` call. Every option that changes the distribution is named, so that no
    default of the server or of a model folder has a say."""
    params = request.params
    greedy = params.temperature == 0
    return {
        "rid": rid,
        "input_ids": list(request.token_ids),
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": params.temperature,
            "top_p": 1.0 if greedy else params.top_p,
            "top_k": -1 if greedy or params.top_k == 0 else params.top_k,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "n": 1,
            "ignore_eos": False,
            "stop_token_ids": list(params.stop_token_ids),
            # heard by servers with --enable-deterministic-inference only
            "sampling_seed": request.seed,
        },
        "return_logprob": True,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def to_output(
    reply: GenerateReply, request: SampleRequest, max_new_tokens: int, vocab_size: int, version: int
) -> SampleOutput:
    """A finished answer (not an aborted one) as the ledger wants it.

    LedgerError when the server read another context, ids and log-probs do not match one to one, one is
    missing, it ended at a token that is no stop token of ours, cut the turn short, or sampled an id outside
    the vocabulary: none of this can be learned from, and all of it would go on with the next request.
    """
    ids, meta = reply.output_ids, reply.meta_info
    where = f"session {request.session_id!r}"
    if meta.prompt_tokens != len(request.token_ids):
        raise LedgerError(
            f"{where}: sent {len(request.token_ids)} ids, the server read {meta.prompt_tokens}; does it "
            "truncate inputs?"
        )
    if meta.output_token_logprobs is None:
        raise LedgerError(
            f"{where}: the server returned no log-probs; expected one for each of {len(ids)} ids"
        )
    if tuple(token for _, token, _ in meta.output_token_logprobs) != ids:
        raise LedgerError(
            f"{where}: the log-probs belong to ids {[t for _, t, _ in meta.output_token_logprobs][:8]}…, "
            "sampled were "
            f"{list(ids[:8])}… ({len(meta.output_token_logprobs)} and {len(ids)} of them); expected the same"
        )
    logprobs: list[float] = []
    for index, (value, token, _) in enumerate(meta.output_token_logprobs):
        if value is None:
            raise LedgerError(
                f"{where}: no log-prob for sampled token {index} (id {token}); expected a number"
            )
        logprobs.append(value)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise LedgerError(
            f"{where}: the server sampled id {max(ids)}, the vocabulary has {vocab_size}; does it serve "
            "another model?"
        )
    stop = meta.finish_reason.type
    if stop == "stop" and (not ids or ids[-1] not in request.params.stop_token_ids):
        raise LedgerError(
            f"{where}: the server stopped at {meta.finish_reason.matched!r}, which is none of the stop "
            "tokens "
            f"{request.params.stop_token_ids}; start it with the model folder of this run, whose end tokens "
            "are these"
        )
    if stop == "length" and len(ids) != max_new_tokens:
        raise LedgerError(
            f"{where}: the server ended after {len(ids)} of {max_new_tokens} tokens for lack of room; start "
            "it with more --context-length and --max-total-tokens"
        )
    return SampleOutput(ids, tuple(logprobs), stop, version)
