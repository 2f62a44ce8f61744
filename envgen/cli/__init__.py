"""The ``envgen`` command: ``lint``, ``synth``, ``validate``, ``show``, ``play``."""

from envgen.cli.app import app, main

__all__ = ["app", "main"]
