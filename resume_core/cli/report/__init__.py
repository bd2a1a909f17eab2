"""``exact-resume report``: what has become of a run, as one page that needs nothing else."""
