"""Streams: scenes that come one after the other, with no random access, fed through the same loaders.

A stream differs from a sequence in one thing: nobody knows what is next before it comes. So a `Source` is asked for
items in their order, by one thread, which announces every batch of them to a `StreamPlan` and then submits it to an
ordinary loader, under the item's number in the repetition.
"""
