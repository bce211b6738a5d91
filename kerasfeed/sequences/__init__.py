"""The user's class of scenes, views of it (`Map`, `Zip`, `Subset`, ...), and `Cached`.

May import: errors, util, spec, orders.
"""
