"""Experiments: each script trains, and writes the files behind one page of results/studies/."""
