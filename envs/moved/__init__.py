"""Former names of modules that users' files may import, such as `from rljax.envs.analytic import Pendulum`.

`rljax.envs` looks for modules here too. New code uses the modules' own names.
"""
