"""The command line."""

from rljax.cli.main import main, train_file

__all__ = ["main", "train_file"]
