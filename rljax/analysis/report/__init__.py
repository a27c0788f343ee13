"""The page of `rljax report`.

`results` computes the numbers, `drawings` draws the figures, `sections` and `provenance` make
sections from `elements`, and `page` writes the files.
"""

from rljax.analysis.report.page import write

__all__ = ["write"]
