"""What other people's repositories hold, by agent.

`readers` reads their files of settings; `data`, `hybrid` and so on say which setting is which of
ours. `pairs` names the files whose updates are compared with ours, and `learners` brings the
parameters of their learners to our form.
"""
