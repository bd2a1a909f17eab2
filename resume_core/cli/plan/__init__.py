"""``exact-resume plan``: how large checkpoints are, how often saving pays, and what it costs. Imports nothing heavy."""
