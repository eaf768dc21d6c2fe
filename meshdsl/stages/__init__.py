"""Stages of one model on different meshes: transfers between them, and their training."""
