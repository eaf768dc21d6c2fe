"""Products of numbers in few bits."""
