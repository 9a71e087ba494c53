"""The command line. `main` is the entry point; everything heavy is imported when it is needed."""

from pygraph.cli.main import app, main

__all__ = ["app", "main"]
