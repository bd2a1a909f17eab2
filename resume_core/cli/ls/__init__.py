"""``exact-resume ls``: the attempts of a run and their checkpoints."""
