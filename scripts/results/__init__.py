"""What makes tables, pages and published numbers from runs and files.

Hardly anything is trained here.
"""
