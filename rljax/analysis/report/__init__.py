"""The page of `rljax report`: `results` computes, `drawings` draws, `sections` and `provenance` say, `page` writes."""

from rljax.analysis.report.page import write

__all__ = ["write"]
