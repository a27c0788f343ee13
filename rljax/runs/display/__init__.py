"""What a running run shows: in terminals, and in notebooks."""
