"""The user's class of scenes, views of it, and `Cached`.

May import: errors, util, spec, orders.
"""
