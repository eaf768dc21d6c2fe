"""Layers: frozen dataclasses of Tensors that compute with them.

They know nothing of meshes, axes or collectives.
"""
