"""The tokenizer: lossless, special tokens only where asked for, copies tokenise alike, opens in
transformers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoforge_jax.errors import ConfigError
from autoforge_jax.rollout.tokenizer import SPECIAL_TOKENS, PolicyTokenizer, train_tokenizer
from tests.autoforge_jax.mock_rollout import tokenizer

ROOT = Path(__file__).resolve().parents[2]
SPECIAL_IDS = frozenset(range(len(SPECIAL_TOKENS)))
# Ordinary text with many near-misses and whole special strings in it.
TEXTS = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from(SPECIAL_TOKENS), st.sampled_from(["<|", "|>", "</"]))
).map("".join)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_text_is_lossless_and_never_special(text: str) -> None:
    ids = tokenizer().encode_text(text)
    assert tokenizer().decode(ids) == text
    assert SPECIAL_IDS.isdisjoint(ids)


@given(st.lists(st.sampled_from([*SPECIAL_TOKENS, "a", "E41", " b", "\n", '":"'])))
@settings(max_examples=100, deadline=None)
def test_marked_text_has_one_id_per_special_token(parts: list[str]) -> None:
    ids = tokenizer().encode_marked("".join(parts))
    assert tokenizer().decode(ids) == "".join(parts)
    assert [SPECIAL_TOKENS[i] for i in ids if i in SPECIAL_IDS] == [p for p in parts if p in SPECIAL_TOKENS]


def test_special_ids_come_first_and_pad_is_zero() -> None:
    assert [tokenizer().special_id(token) for token in SPECIAL_TOKENS] == list(range(9))
    assert tokenizer().pad_id == 0
    assert tokenizer().stop_ids == (2, 0)


@pytest.mark.parametrize("text", ["12-03-01", "E41", "x:007", '{"price":1250}', " 30 of 45", "x7y8z9"])
def test_every_digit_is_its_own_token(text: str) -> None:
    pieces = [tokenizer().decode([i]) for i in tokenizer().encode_text(text)]
    assert "".join(pieces) == text
    assert all(len(piece) == 1 for piece in pieces if any(c.isdigit() for c in piece))


def test_dates_and_full_hours_are_short_and_the_same_everywhere() -> None:
    texts = [
        f'{{"at":"2024-0{i % 9 + 1}-1{i % 7}T1{i % 10}:00:00","on":"2025-1{i % 3}-05"}}' for i in range(99)
    ]
    own = train_tokenizer(texts, 340)
    pieces = [own.decode([i]) for i in own.encode_text("2024-03-17T10:00:00")]
    assert pieces == ["2024-", "0", "3", "-", "1", "7", "T", "1", "0", ":00:00"]
    assert [own.decode([i]) for i in own.encode_text("07:30")] == ["0", "7", ":", "3", "0"]
    assert [own.decode([i]) for i in own.encode_text("2024-7 of 12024-01-01")][:5] == [
        "2",
        "0",
        "2",
        "4",
        "-",
    ]


@pytest.mark.parametrize(
    "copied", ["NB1", "N12", "Milk", "Weekly Plan", "7", "Qoz Vax", "list_notes", "listNotes"]
)
@pytest.mark.parametrize(
    "context",
    [
        '[{"id":"%s","name":"x"}]',
        '{"name":"get","arguments":{"id":"%s"}}',
        '{"n":%s}',
        "the note %s is",
        "of %s.",
        "%s(a: str)",
        '{"a":["%s",1]}',
        "Home is %s, now",
    ],
)
def test_a_copied_string_has_the_same_ids_everywhere(copied: str, context: str) -> None:
    own = tokenizer().encode_text(copied)
    whole = tokenizer().encode_text(context % copied)
    assert any(whole[i : i + len(own)] == own for i in range(len(whole)))


@pytest.mark.parametrize("key", ["name", "list_notes", "listNotes"])
@pytest.mark.parametrize("opens", ['":"', '":', '":[{"', '":{"'])
def test_a_key_and_what_opens_its_value_are_one_pre_token(key: str, opens: str) -> None:
    own = train_tokenizer([f'{{"{key}{opens}'] * 9, 600)
    assert [own.decode([i]) for i in own.encode_text(f'{{"{key}{opens}')] == ['{"', f"{key}{opens}"]


def test_a_name_in_quotes_before_a_colon_is_no_key() -> None:
    """A thought (``"Old Gala": E4``) copies the name as a result spells it."""
    own = train_tokenizer(['{"name":"Old Gala","id":"E4"} "Old Gala": E4'] * 9, 600)
    assert [own.decode([i]) for i in own.encode_text('"Old Gala": E4')][1:3] == ["Old ", "Gala"]


def test_names_of_several_words_take_a_token_a_word() -> None:
    own = train_tokenizer(['"Weekly Plan" in "Plan"'] * 9, 600)
    assert [own.decode([i]) for i in own.encode_text('"Weekly Plan"')] == ['"', "Weekly ", "Plan", '"']


def test_frames_of_json_are_single_tokens() -> None:
    for frame in ('","arguments":{"', '":"', '"},{"', '"}}\n', "assistant\n", '\n{"name":"'):
        assert len(tokenizer().encode_text(frame)) == 1, frame


def test_training_is_deterministic_in_a_fresh_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from autoforge_jax.rollout.tokenizer import train_tokenizer\n"
        "train_tokenizer(Path(sys.argv[1]).read_text().split('@'), 400).save(Path(sys.argv[2]))"
    )
    words = [f"<|im_start|>user\nitem {i * 37 % 101} of Box{i % 7}<|im_end|>" for i in range(300)]
    (tmp_path / "texts").write_text("@".join(words))
    for name, seed in (("a", "1"), ("b", "77")):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "texts"), str(tmp_path / name)],
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
    first, second = ((tmp_path / name / "tokenizer.json").read_bytes() for name in "ab")
    assert first == second
    train_tokenizer(words, 400).save(tmp_path / "c")
    assert (tmp_path / "c" / "tokenizer.json").read_bytes() == first


def test_opens_in_transformers_with_the_same_ids(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer().save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = '<|im_start|>user\nMove Milk.<|im_end|>\n<tool_call>\n{"name":"x","arguments":{}}\n</tool_call>'
    assert tuple(theirs(text, add_special_tokens=False)["input_ids"]) == tokenizer().encode_marked(text)
    assert theirs.decode(theirs(text)["input_ids"]) == text
    assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 2)
    assert len(theirs) == tokenizer().vocab_size


def test_load_gives_the_same_tokenizer(tmp_path: Path) -> None:
    tokenizer().save(tmp_path)
    again = PolicyTokenizer.load(tmp_path)
    text = 'The note "Ünïcode 42" <|im_end|> 🙂'
    assert again.encode_text(text) == tokenizer().encode_text(text)
    assert again.vocab_size == tokenizer().vocab_size


def test_bad_files_and_sizes_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        PolicyTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        PolicyTokenizer.load(tmp_path)
    with pytest.raises(ConfigError, match="at least 265"):
        train_tokenizer(["x"], 264)
    tokenizer().save(tmp_path)
    tree = json.loads((tmp_path / "tokenizer.json").read_text())
    tree["added_tokens"] = [t for t in tree["added_tokens"] if t["content"] != "<think>"]
    del tree["model"]["vocab"]["<think>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="<think>"):
        PolicyTokenizer.load(tmp_path)
