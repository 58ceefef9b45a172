"""Who this node is to others: its key pairs, and the signatures of requests between nodes."""
