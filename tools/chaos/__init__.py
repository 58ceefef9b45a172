"""``make chaos``: every fault in every phase of a job."""
