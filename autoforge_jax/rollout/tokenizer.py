"""Byte-level BPE for small policies, in Hugging Face's files (tokenizer.json, tokenizer_config.json with a
chat template).

Made for JSON that is copied: a digit is one token (but for the year of an ISO date and the ``:00`` of a
full hour); a run of JSON punctuation (``":"``, ``"},{"``) is one pre-token and so becomes one token, an
object's key with what opens its value (``price":``) another; the frame of a tool call (``{"name":"``,
``","arguments":{"``) is one pre-token each, and so is an identifier (``list_notes``, ``listNotes``). A
capitalised word, an identifier or an id (``E41`` = ``E``, ``4``, ``1``) never carries the space before it,
so it has the same ids in a sentence, in a result and in a call; a name of two words is two tokens
(``Weekly ``, ``Plan``). Short transcripts matter: what need not be read cannot be looked at by mistake.

Special tokens exist only where a renderer writes them: `encode_text` reads any string as ordinary text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from autoforge_jax.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
THINK, THINK_END = "<think>", "</think>"
TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
TOOL_RESPONSE, TOOL_RESPONSE_END = "<tool_response>", "</tool_response>"
SPECIAL_TOKENS = (
    END_OF_TEXT,
    IM_START,
    IM_END,
    THINK,
    THINK_END,
    TOOL_CALL,
    TOOL_CALL_END,
    TOOL_RESPONSE,
    TOOL_RESPONSE_END,
)
"""In id order for tokenizers trained here: `<|endoftext|>` (padding) is 0."""


@dataclass(frozen=True)
class TokenRoles:
    """The special tokens that a chat format is written with (rollout.formats)."""

    structure: tuple[str, ...]
    """Everything that it writes or reads as one id; in id order for tokenizers trained here."""
    ends: tuple[str, ...]
    """What ends a sampled turn; the first is what references end with."""
    pad: str
    """What fills unused positions. Masks never come from its value."""


CHATML_ROLES = TokenRoles(SPECIAL_TOKENS, ends=(IM_END, END_OF_TEXT), pad=END_OF_TEXT)
"""Qwen3's, and those of models trained here."""

# Leftmost alternative wins; every character is matched by one of them, so the split loses nothing.
_PRE_TOKENS = "|".join(
    (
        r"\A(?:system|user|assistant)\n",  # the role line after <|im_start|>
        r'\A\n\{"name":"',  # opening frame of a call
        r'","arguments":[^\p{L}\p{N}\s]+\n*',  # its middle
        r"20\d\d-(?=\d\d-)",  # year of an ISO date: the same in most dates of a transcript
        r"(?::00)+(?!\p{N})",  # full hours
        r"\p{N}",
        r'[\p{L}_]+":(?! )[\[{"]*',  # a key with what opens its value
        r" (?=\p{L}*[\p{Ll}_][_\p{Lu}])",
        r"(?<![\p{L}_])(?=\p{L}*[\p{Ll}_][_\p{Lu}])[\p{L}_]+(?!\p{N})",  # snake_case and camelCase names
        r"[ _]?\p{Ll}+(?: (?=[\p{Lu}\p{N}]))?",  # the space before an id or a name goes to the word before it
        r"\p{Lu}\p{Ll}+(?: (?=[\p{Lu}\p{N}]))?",
        r"\p{Lu}+(?!\p{Ll})",  # ids' prefixes and acronyms: URLParser = URL, Parser
        r"\p{L}",
        r"[ \n]?[^\p{L}\p{N}\s]+(?:\n+| (?!\p{Ll}))?",  # punctuation runs with the breaks around them
        r"\n+",
        r"\s",
    )
)
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.j2").read_text(encoding="utf-8")
"""Qwen3's layout with thinking kept in every turn; renders what the format `compact` renders."""


SOURCE_FILES = (
    "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
"""What stands beside a pretrained model's tokenizer.json and is kept as it is."""


class PolicyTokenizer:
    """A tokenizer.json with the special tokens of a chat format as single ids."""

    def __init__(
        self,
        marked: Tokenizer,
        roles: TokenRoles = CHATML_ROLES,
        source_files: Mapping[str, bytes] | None = None,
    ) -> None:
        """``marked``: the tokenizer as it is on disk. source_files: what `save` writes beside it instead of a
        configuration of our own. ConfigError when a special token is missing from it.
        """
        ids = {token: marked.token_to_id(token) for token in roles.structure}
        missing = [token for token, index in ids.items() if index is None]
        if missing:
            raise ConfigError(
                f"the tokenizer lacks the special tokens {missing}; set render.format to the format of its "
                "family, add them, or train one: train_tokenizer"
            )
        self.roles = roles
        self._marked = marked
        self._source_files = dict(source_files or {})
        # A second object without added tokens is the only way to read "<|im_end|>" as text for every kind of
        # added token: `encode_special_tokens` covers those flagged special only, and Qwen's <tool_call> is
        # not.
        tree = json.loads(marked.to_str())
        tree["added_tokens"] = []
        tree["post_processor"] = None
        self._plain = Tokenizer.from_str(json.dumps(tree))
        self._ids = {token: index for token, index in ids.items() if index is not None}
        self.special_tokens: Mapping[int, str] = {index: token for token, index in self._ids.items()}
        """Id -> special token."""
        added = {index: str(token) for index, token in marked.get_added_tokens_decoder().items()}
        # A family has more added tokens than its format uses; a policy may sample them, and they are spelled.
        self._spelled: Mapping[int, str] = {**added, **self.special_tokens}
        self._split = re.compile("(" + "|".join(re.escape(token) for token in roles.structure) + ")")
        # Siblings of a group repeat openings, results and calls: most texts are read and written many times.
        self.encode_text = lru_cache(maxsize=32_768)(self._encode_text)
        self.decode_text = lru_cache(maxsize=32_768)(self._decode_text)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return self._marked.get_vocab_size()

    @property
    def pad_id(self) -> int:
        """Id of `roles.pad`. Masks never come from its value."""
        return self._ids[self.roles.pad]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn: `<|im_end|>`, `<|endoftext|>` in ChatML."""
        return tuple(self._ids[token] for token in self.roles.ends)

    def special_id(self, token: str) -> int:
        """Id of one of `roles.structure`."""
        return self._ids[token]

    def _encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of ordinary text. A special token's string inside it is text like any other. Cached."""
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_marked(self, text: str) -> tuple[int, ...]:
        """Ids of text in which special tokens' strings stand for special tokens. For texts a person or a
        template wrote.
        """
        ids: list[int] = []
        for part in self._split.split(text):
            ids.extend((self._ids[part],) if part in self._ids else self.encode_text(part))
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text with special tokens spelled out; bytes that are no UTF-8 become U+FFFD."""
        special = self._spelled
        parts: list[str] = []
        start = 0
        for index, token_id in enumerate(ids):
            if token_id in special:
                parts += (self.decode_text(tuple(ids[start:index])), special[token_id])
                start = index + 1
        return "".join((*parts, self.decode_text(tuple(ids[start:]))))

    def _decode_text(self, ids: tuple[int, ...]) -> str:
        """Text of ordinary ids; bytes that are no UTF-8 become U+FFFD. Cached."""
        return self._plain.decode(ids, skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json (of a pretrained model: its own files, chat template
        included); transformers' AutoTokenizer opens them.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self._marked.to_str(pretty=True), encoding="utf-8")
        if self._source_files:
            for name, content in self._source_files.items():
                (folder / name).write_bytes(content)
            return
        tree = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": self.roles.ends[0],
            "pad_token": self.roles.pad,
            "bos_token": None,
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1_000_000,
        }
        if self.roles == CHATML_ROLES:
            tree["chat_template"] = CHAT_TEMPLATE
        (folder / "tokenizer_config.json").write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, roles: TokenRoles = CHATML_ROLES) -> PolicyTokenizer:
        """Open ``folder/tokenizer.json``. ConfigError when it is missing, broken, or lacks special tokens."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{path} does not exist; expected one written by `PolicyTokenizer.save` or Hugging Face"
            )
        text = path.read_text(encoding="utf-8")
        try:
            marked = Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for a bad file: this is its boundary
            raise ConfigError(f"{path} is not a tokenizer: {error}") from error
        beside = {name: (folder / name).read_bytes() for name in SOURCE_FILES if (folder / name).is_file()}
        try:
            return cls(marked, roles, beside)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


def _chunks(texts: Iterable[str], roles: TokenRoles) -> Iterator[list[str]]:
    special = re.compile("(" + "|".join(re.escape(token) for token in roles.structure) + ")")
    for text in texts:
        yield [part for part in special.split(text) if part and not special.fullmatch(part)]


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, roles: TokenRoles = CHATML_ROLES
) -> PolicyTokenizer:
    """Learn byte-level BPE merges on rendered transcripts. Deterministic; lossless for any string.

    ``vocab_size`` counts the special tokens (9 in ChatML) and 256 bytes; fewer ids come out when the texts
    have fewer merges to learn.
    """
    floor = len(roles.structure) + 256
    if vocab_size < floor:
        raise ConfigError(f"vocab_size is {vocab_size}, expected at least {floor} (special tokens and bytes)")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRE_TOKENS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in roles.structure],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The library does not cut training text at special tokens, so it is cut here: no merge may span one.
    tokenizer.train_from_iterator(_chunks(texts, roles), trainer)
    return PolicyTokenizer(tokenizer, roles)
