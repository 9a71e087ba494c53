"""From a callable on real tensors to a linked graph: record, link, prove.

Nothing here knows about torch.compile; the frontend does, and says what a request needs of it
(request.py). `pipeline.link` is to be read first.
"""
