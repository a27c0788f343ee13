"""Adapters for packages of compiled environments."""
