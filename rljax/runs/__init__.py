"""One run as a folder: settings, checkpoints, records, and the trained policy."""
