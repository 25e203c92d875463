"""Experiments of "Exploring Deep Neural Networks via Layer-Peeled Model" (Fang, He, Long & Su, PNAS 2021)."""
