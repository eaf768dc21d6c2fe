"""The layout that makes a step fastest: found by its estimate, confirmed by the compiler."""
