"""How parameters move: optimiser steps, the trust region, eligibility traces,
Lagrange multipliers.
"""
