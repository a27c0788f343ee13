"""The trained policies of a run: loaded, evaluated, filmed, attacked."""
