"""What a run is asked when it is looked into: one text, a file of texts, heads off, heads pruned."""
