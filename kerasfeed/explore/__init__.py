"""Pictures of sequences, feeds and orders. May import: errors, util, spec, orders, sequences, loaders, feeds."""
