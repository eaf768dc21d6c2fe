"""The memory of one device: what it holds at rest, and what lives at the peak of a step."""
