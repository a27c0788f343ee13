"""What a folder or a file of somebody else may do on this machine.

The promise, which docs/security.md explains:

- A file chooses no code. Code that a run's folder names runs only if this user named it, on this
  machine, or trusts the folder now. Seals show what the user named.
- A state of environments that is a pickle is loaded only if this user saved it, or trusts it now.
- A run reads and writes only files in its own folder: no links, no devices, no pipes, and nothing
  that fills the memory.
- Text from a file does nothing to a terminal.

Whoever opens a folder makes a `Folder` once, from its path and the user's `--trust`, and hands it
on. Other packages use the names here, without heavy imports, and `rljax.trust.plain_state`.
"""

from rljax.trust.arguments import unsafe_argument, unsafe_argument_in
from rljax.trust.files import SMALL, RefusedFileError, links, regular, safe
from rljax.trust.folder import Folder, require_no_code
from rljax.trust.keys import seals, state_seal
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
    "printable",
    "regular",
    "require_no_code",
    "require_no_pickle",
    "safe",
    "seals",
    "show",
    "state_seal",
    "unsafe_argument",
    "unsafe_argument_in",
]
