"""What a folder or a file of somebody else may do on this machine; docs/security.md has the
promise.

Whoever opens a folder makes a `Folder` once, from its path and the user's `--trust`, and hands it
on. Other packages use the names here, without heavy imports, and `rljax.trust.plain_state`.
"""

from rljax.trust.arguments import unsafe_argument, unsafe_argument_in
from rljax.trust.files import SMALL, RefusedFileError, links, regular, safe
from rljax.trust.folder import Folder, require_no_code
from rljax.trust.keys import seals, state_seal
from rljax.trust.notes import note, show_warning
from rljax.trust.states import PICKLED, TrustedState, is_pickle, require_no_pickle
from rljax.trust.text import LINES, printable, show

__all__ = [
    "LINES",
    "PICKLED",
    "SMALL",
    "Folder",
    "RefusedFileError",
    "TrustedState",
    "is_pickle",
    "links",
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
