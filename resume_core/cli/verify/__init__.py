"""``exact-resume verify``: whether every byte of a run's checkpoints is what was saved, on every tier."""
