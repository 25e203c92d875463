"""From model to matrices: what a layer is, hooks that are always removed, reductions to (n, d), batches of any kind.

batches     data of any kind as batches
modules     names of modules, what counts as a weight layer or a block, the classifier
trace       the dry run
site_rules  which modules are sites
plan        what a dry run decides, and how a site becomes one row of features per sample
hooks       features handed over while the forward runs
network     the network's state while it is probed
"""
