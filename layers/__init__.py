"""Layers: frozen dataclasses of Tensors that compute with them. No mesh, no axis, no collective in here."""
