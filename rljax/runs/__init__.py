"""One run as a folder: settings, checkpoints, records, the policy that comes of it."""
