"""What several tests use: small runs, written folders, an agent that counts, replay buffers,
a Config of all kinds.
"""
