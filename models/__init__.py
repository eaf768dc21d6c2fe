"""Models, composed from layers. No mesh, no axis, no collective in here."""
