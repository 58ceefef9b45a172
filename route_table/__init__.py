"""Node id -> where and how that node is reached.

This room knows nothing of the gateway. Its one library is ``yaml``.
"""
