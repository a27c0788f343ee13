"""Several devices, several processes, several machines."""
