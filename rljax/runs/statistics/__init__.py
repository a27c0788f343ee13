"""How good are the policies of one run? Estimators, and summaries of its evaluations."""
