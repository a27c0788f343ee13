"""The environments of this suite, called `rljax/...`. They run inside the compiled program."""
