"""What other people's repositories set, by agent: `readers` reads their files, the other modules
say which setting is which of ours. `pairs` has the files whose updates are compared with ours.
"""
