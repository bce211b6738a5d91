"""The user's class of scenes, views of it (`Map`, `Zip`, `Subset`, ...), `Cached`, and parts of arrays (`Patches`).

May import: errors, util, spec, orders.
"""
