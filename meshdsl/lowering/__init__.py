"""How ops become local computation and collectives."""
