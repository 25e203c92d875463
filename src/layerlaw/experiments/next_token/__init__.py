"""Figures of "A Law of Next-Token Prediction in Large Language Models" (He & Su, arXiv 2408.13442), one file each."""
