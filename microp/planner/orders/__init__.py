"""Searches for orders under a memory cap, with lower bounds that tell how good they are. It needs no torch.

::

    Problem ── rules, beam ─► improve ─► an order          bounds, solver ─► no order is shorter than this
"""
