"""Our own API for operators: what the protocol has no words for."""
