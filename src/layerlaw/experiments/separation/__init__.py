"""Figures of "A Law of Data Separation in Deep Learning" (He & Su, PNAS 2023), one file each."""
