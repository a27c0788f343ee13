"""What other people's repositories set, by agent: `readers` reads their files, the other modules
say which setting is which of ours.
"""
