"""The deterministic proposer: names, paths, parameters and schemas in, an environment draft out. No language
model."""

from envgen.proposers.rules.propose import propose

__all__ = ["propose"]
