"""Many runs: grids, searches, population-based training."""
