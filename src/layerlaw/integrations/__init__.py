"""Thin: where people already work. Each file needs packages of its own, which are imported when it is used, not before."""
