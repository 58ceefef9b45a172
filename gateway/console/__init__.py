"""The pages for people on the operators' listener: static files over ``/api/v1``, and the session
of a browser.
"""
