"""Where people already work: a monitor for training loops, callbacks of Lightning and the Hugging Face Trainer, trackers.

Each file is thin, and imports the package that it is for with its first use, not before.
"""
