"""Rules that bring equal terms into one form, and what is known of numbers for that."""
