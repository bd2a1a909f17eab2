"""``exact-resume diff``: what is different between two checkpoints."""
