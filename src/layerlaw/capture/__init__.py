"""From model to matrices: what a layer is, hooks that are always removed, reductions to (n, d), batches of any kind."""
