"""Live objects to state and back: random generators, data order and position, modules, and what decides a run."""
