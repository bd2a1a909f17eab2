"""What `overhead.py` measures, one module a cost."""
