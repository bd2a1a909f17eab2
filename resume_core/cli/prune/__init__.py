"""``exact-resume prune``: delete what `Keep` does not keep, by the rules of training itself."""
