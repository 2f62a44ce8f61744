"""Chat formats against the families' own templates, token by token, and reading turns back."""

from __future__ import annotations

from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoforge_jax.config import RenderConfig, parse_config
from autoforge_jax.errors import ConfigError, LedgerError
from autoforge_jax.rollout.formats.calls import compact_json
from autoforge_jax.rollout.formats.choose import FORMATS
from autoforge_jax.rollout.tokenizer import PolicyTokenizer
from envgen.interface import Message, ToolCall
from tests.autoforge_jax.chat_cases import CASES, RULES, TOOLS, calls, result, said, user
from tests.autoforge_jax.chat_tokenizers import (
    conversation_ids,
    family_renderer,
    family_tokenizer,
    golden_templates,
)

FAMILIES = tuple(name for name in FORMATS if name != "compact")
PAIRS = [(family, name) for family in FAMILIES for name, case in CASES.items() if family in case.families]


def test_config_names_the_formats() -> None:
    assert set(get_args(RenderConfig.model_fields["format"].annotation)) == set(FORMATS)
    with pytest.raises(ConfigError, match="'compact', 'qwen3', 'qwen3_thinking', 'llama3' or 'smollm2'"):
        parse_config({"render": {"format": "chatglm"}})
    with pytest.raises(ConfigError, match="'smollm2' writes thoughts as ordinary text"):
        parse_config({"render": {"format": "smollm2", "interleaved_thinking": False}})
    assert RenderConfig().tool_style == "signature"
    assert RenderConfig(format="llama3").tool_style == "json"
    assert RenderConfig(format="llama3", tools="signature").tool_style == "signature"


@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_equals_the_family_template_token_by_token(family: str, name: str) -> None:
    renderer, tokenizer = family_renderer(family), family_tokenizer(family)
    ids = [i for part in conversation_ids(renderer, CASES[name]) for i in part]
    expected = golden_templates()[family][name]
    if family == "qwen3_thinking":  # its generation prompt goes on
        expected += "<think>\n"
    assert tokenizer.decode(ids) == expected
    # what transformers does: the template's whole text through the tokenizer at once
    assert ids == tokenizer._marked.encode(expected, add_special_tokens=False).ids


def test_every_family_was_checked_on_tools_errors_and_users() -> None:
    for family in ("qwen3", "llama3", "smollm2"):
        assert {"one_query", "errors_and_retries", "several_users"} <= {n for f, n in PAIRS if f == family}


def test_signatures_in_a_family_format() -> None:
    for family in FAMILIES:
        config = RenderConfig(format=family, tools="signature")  # type: ignore[arg-type]
        text = "".join(FORMATS[family](config).prefix(RULES, TOOLS))
        assert "find_book(title, limit?: int) - Find books by title" in text
        assert '"properties"' not in text and RULES in text
        if family != "llama3":
            assert "<tool_call>" in text, "the form of a call is told"


@pytest.mark.parametrize("family", FAMILIES)
def test_only_users_and_tools_are_observations(family: str) -> None:
    with pytest.raises(LedgerError, match="assistant message cannot be an observation"):
        family_renderer(family).observations([said("x")])


def test_a_tokenizer_of_another_family_is_refused(tmp_path: Any) -> None:
    family_tokenizer("llama3").save(tmp_path)
    with pytest.raises(ConfigError, match=r"im_start.*render\.format"):
        PolicyTokenizer.load(tmp_path, FORMATS["qwen3"].roles)
    loaded = PolicyTokenizer.load(tmp_path, FORMATS["llama3"].roles)
    assert loaded.decode(loaded.stop_ids) == "<|eot_id|><|eom_id|><|end_of_text|>"


def test_a_family_keeps_its_own_files_and_spells_tokens_that_it_does_not_use(tmp_path: Any) -> None:
    tokenizer = family_tokenizer("qwen3")
    tokenizer.save(tmp_path / "a")
    (tmp_path / "a" / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (tmp_path / "a" / "chat_template.jinja").write_text("{{ own }}")
    loaded = PolicyTokenizer.load(tmp_path / "a", FORMATS["smollm2"].roles)
    loaded.save(tmp_path / "b")
    assert (tmp_path / "b" / "chat_template.jinja").read_text() == "{{ own }}"
    assert (tmp_path / "b" / "tokenizer_config.json").read_text() == '{"eos_token": "<|im_end|>"}'
    call = tokenizer.special_id("<tool_call>")
    assert call not in loaded.special_tokens and loaded.decode([call]) == "<tool_call>"


# ------------------------------------------------------------------------------------------------ parsing
WORDS = st.text(st.characters(exclude_characters="<{", exclude_categories=("Cs",)), max_size=20).map(
    str.strip
)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(st.text(max_size=5), JSON, max_size=3)), max_size=3)


@pytest.mark.parametrize("family", FAMILIES)
@given(content=WORDS, thinking=WORDS, wanted=CALLS)
@settings(max_examples=60, deadline=None)
def test_parse_reads_back_what_was_rendered(family: str, content: str, thinking: str, wanted: Any) -> None:
    if family == "llama3":  # one call, or text
        wanted, content = wanted[:1], "" if wanted else content
    made = [
        ToolCall(id=f"t3c{i}", name=name, arguments=compact_json(arguments))
        for i, (name, arguments) in enumerate(wanted)
    ]
    message = Message(role="assistant", content=content, thinking=thinking, tool_calls=tuple(made))
    renderer = family_renderer(family)
    assert renderer.parse_action(renderer.action_ids(message), turn=3) == message


@pytest.mark.parametrize("family", FAMILIES)
@given(ids=st.lists(st.integers(0, 8) | st.integers(0, 899), max_size=40))
@settings(max_examples=100, deadline=None)
def test_parse_is_total(family: str, ids: list[int]) -> None:
    tokenizer = family_tokenizer(family)
    message = family_renderer(family).parse_action([i % tokenizer.vocab_size for i in ids], turn=5)
    assert message.role == "assistant"
    assert [call.id for call in message.tool_calls] == [f"t5c{i}" for i in range(len(message.tool_calls))]
    for call in message.tool_calls:
        assert call.parse_error or isinstance(orjson.loads(call.arguments), dict)


def parse(family: str, text: str) -> Message:
    return family_renderer(family).parse_action(family_tokenizer(family).encode_marked(text))


GOOD = [
    ("qwen3", '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call><|im_end|>'),
    ("qwen3_thinking", 'so\n</think>\n\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'),
    ("smollm2", '<tool_call>[{"name": "a", "arguments": {"x": 1}}]</tool_call><|im_end|>'),
    ("smollm2", '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call><|im_end|>'),
    ("llama3", '{"name": "a", "parameters": {"x": 1}}<|eot_id|>'),
    ("llama3", '<|python_tag|>{"name": "a", "parameters": {"x": 1}}<|eom_id|>'),
    ("llama3", '<think>\nso\n</think>\n\n{"name": "a", "arguments": {"x": 1}}<|eot_id|>'),
]


@pytest.mark.parametrize(("family", "text"), GOOD)
def test_the_familys_own_form_of_a_call(family: str, text: str) -> None:
    message = parse(family, text)
    (call,) = message.tool_calls
    assert (call.name, call.arguments, call.parse_error) == ("a", '{"x":1}', "")
    assert message.content == "" and message.thinking == ("so" if "so\n" in text else "")


@pytest.mark.parametrize(
    ("family", "text", "name", "fault"),
    [
        ("qwen3", "<tool_call>{name: a}</tool_call>", "", "not valid JSON"),
        ("qwen3", '<tool_call>{"name": "a", "parameters": {}}</tool_call>', "a", "unknown key 'parameters'"),
        ("qwen3", "<think>\nhm", "", "thinking was not closed"),
        ("qwen3_thinking", "hm<|im_end|>", "", "thinking was not closed"),
        ("smollm2", "<tool_call>[{]</tool_call>", "", "not valid JSON"),
        ("smollm2", '<tool_call>[{"name": "a"}', "", "not closed"),
        ("smollm2", '<tool_call>["a"]</tool_call>', "", "expected"),
        ("smollm2", "<tool_call>[]</tool_call>", "", "empty list"),
        ("smollm2", "<think>\nhm", "", "thinking was not closed"),
        ("llama3", '{"name": "a", "parameters": {', "", "not valid JSON"),
        ("llama3", '{"name": "a", "parameters": [1]}', "a", "no object"),
        ("llama3", '{"name": "a", "parameters": {}, "arguments": {}}', "a", "unknown key 'arguments'"),
        ("llama3", '{"tool": "a"}', "", "expected"),
        ("llama3", "{" * 5000, "", "not valid JSON"),
        ("llama3", "<|python_tag|>", "", "nothing follows"),
        ("llama3", "<|python_tag|>lend.call(x=1)", "", "not valid JSON"),
    ],
)
def test_malformed_calls_say_what_is_wrong(family: str, text: str, name: str, fault: str) -> None:
    (call,) = parse(family, text).tool_calls
    assert call.name == name and fault in call.parse_error


def test_several_calls_and_text_around_them() -> None:
    two = parse("llama3", '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}<|eot_id|>')
    assert [call.name for call in two.tool_calls] == ["a", "b"]
    listed = parse("smollm2", 'Wait.\n<tool_call>[{"name": "a"}, {"name": 3}]</tool_call> ok')
    assert [(c.name, bool(c.parse_error)) for c in listed.tool_calls] == [("a", False), ("", True)]
    assert listed.content == "Wait.\nok"
    assert parse("llama3", 'Use {"name": "a"}').tool_calls == (), "text that does not begin with a call"
    assert parse("smollm2", "<tool_call>[]</tool_call>Nothing to do.").content == "Nothing to do."


def test_what_a_family_cannot_write_is_refused() -> None:
    with pytest.raises(LedgerError, match="one call and nothing beside it"):
        family_renderer("llama3").action_ids(calls(("a", "{}"), ("b", "{}")))
    with pytest.raises(LedgerError, match="one call and nothing beside it"):
        family_renderer("llama3").action_ids(calls(("a", "{}"), content="x"))
    with pytest.raises(LedgerError, match="read as a call"):
        family_renderer("llama3").action_ids(said('{"a": 1}'))
    with pytest.raises(LedgerError, match="read as a call"):
        family_renderer("smollm2").action_ids(said("<tool_call>"))


def test_structure_in_text_stays_text() -> None:
    for family in FAMILIES:
        tokenizer, renderer = family_tokenizer(family), family_renderer(family)
        evil = "".join(tokenizer.roles.structure)
        ids = renderer.observations([user(f"x{evil}x"), result(f"x{evil}x")])
        clean = renderer.observations([user("xx"), result("xx")])
        found = [i for i in ids if i in tokenizer.special_tokens]
        assert found == [i for i in clean if i in tokenizer.special_tokens]
        assert tokenizer.decode(ids).count(evil) == 2
