"""What a folder or a file of somebody else may do on this machine; docs/security.md has the
promise.

Whoever opens a folder makes a `Folder` once, and hands it on. Names here need no heavy imports.
"""

from rljax.trust.arguments import unsafe_argument, unsafe_argument_in
from rljax.trust.files import SMALL, RefusedFileError, links, regular, safe
from rljax.trust.folder import Folder, require_no_code
from rljax.trust.keys import seals, state_seal
from rljax.trust.notes import note, show_warning
from rljax.trust.states import PICKLED, TrustedState, is_pickle, require_no_pickle
from rljax.trust.text import LINES, nearest, printable, show

__all__ = [
    "LINES",
    "PICKLED",
    "SMALL",
    "Folder",
    "RefusedFileError",
    "TrustedState",
    "is_pickle",
    "links",
    "nearest",
    "note",
    "printable",
    "regular",
    "require_no_code",
    "require_no_pickle",
    "safe",
    "seals",
    "show",
    "show_warning",
    "state_seal",
    "unsafe_argument",
    "unsafe_argument_in",
]
