"""Scripted experts that record data of a published form."""
