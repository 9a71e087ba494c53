"""From a callable on real tensors to a linked graph: record, link, prove.

Nothing here knows about torch.compile; the adapter does. Arrows: adapter -> capture -> _engine.
"""
