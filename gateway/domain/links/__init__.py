"""Links: connections that a node without an open port keeps to its partners, as pure values."""
