"""The rules, as pure functions over frozen values.

Nothing here opens a socket, a file or a database, and nothing here asks what time it is: time, ids
and randomness come in as arguments. Only the standard library is imported.
"""
