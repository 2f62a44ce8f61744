"""Errors of the trainer, named after the boundary that was crossed.

    AutoforgeError
    ├── ConfigError       a config file or override is wrong: unknown key, wrong type, missing file (exit code
    2)
    ├── LedgerError       the token ledger is broken: missing log-probs, changed prefix, lengths that differ
    ├── PolicyError       an engine failed or was asked for something impossible
    ├── EngineLostError   no engine server answers any more: the run stops, its checkpoints stay
    ├── WeightsError      weights on disk do not fit the model, or did not arrive
    ├── CheckpointError   a checkpoint is missing, half-written, or belongs to another run
    └── TrainingError     training cannot go on (nothing to learn from, agreement lost)

Messages say what was got, what was expected and what to do.
"""


class AutoforgeError(Exception):
    """Base of every error that the trainer raises on purpose."""


class ConfigError(AutoforgeError):
    """A config file or an override is wrong."""


class LedgerError(AutoforgeError):
    """What the engine saw and what the learner would train on differ."""


class PolicyError(AutoforgeError):
    """An engine failed, or was asked for something impossible."""


class EngineLostError(AutoforgeError):
    """No engine server answers, within the time that the config gives it. Not a PolicyError: no episode can
    go on, and no trajectory may be counted as failed for it."""


class WeightsError(AutoforgeError):
    """Weights do not fit the model, or did not arrive."""


class CheckpointError(AutoforgeError):
    """A checkpoint cannot be used."""


class TrainingError(AutoforgeError):
    """Training cannot go on."""
