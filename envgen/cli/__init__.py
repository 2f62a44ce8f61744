"""The ``envgen`` command: its commands are in `envgen.cli.app`."""

from envgen.cli.app import app
from envgen.cli.entry import main

__all__ = ["app", "main"]
