"""Data sets that are made here: scripted experts act,
and files of the published form are written.
"""
