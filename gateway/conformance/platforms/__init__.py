"""The check of another platform: clauses of the standard, each tried against a running node.

A throw-away partner (`partner`) plays one node of the job; `scenarios` hold a function for each
clause of `clauses.yml`; a `Trial` is the part that the functions share.
"""
