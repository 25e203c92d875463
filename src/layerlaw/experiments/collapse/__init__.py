"""Ben-Shaul & Dekel: the nearest class center comes to agree with the network, layer by layer, and SVSL helps it."""
