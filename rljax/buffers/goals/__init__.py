"""Goals of batches."""
