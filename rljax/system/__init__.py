"""The machine and the process on which a run lives: memory, files, signals, the terminal, JAX's threads."""
