"""``exact-resume drill``: a rehearsal of a resume, in another process."""
