"""The page of `rljax report`."""

from rljax.analysis.report.page import write

__all__ = ["write"]
