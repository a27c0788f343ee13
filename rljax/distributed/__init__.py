"""Training on several devices, processes and machines."""
