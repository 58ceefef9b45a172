"""For developers: docs (pages made from the code), bench (measurements), chaos (faults in a job's
every phase).
"""
