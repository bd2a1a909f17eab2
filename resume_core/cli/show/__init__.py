"""``exact-resume show``: one checkpoint, its parts, and what can be done with it."""
