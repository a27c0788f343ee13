"""Families of tasks that an agent can tell apart only by what happens in them."""
