"""The pages for people on the operators' listener: static files, and the session of a browser.

The pages get all data from ``/api/v1``.
"""
