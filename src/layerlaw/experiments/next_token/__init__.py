"""Figures of "A Law of Next-Token Prediction in Large Language Models" (He & Su, arXiv 2408.13442), a function each."""
