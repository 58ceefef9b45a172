"""The command line: thin calls of the gateway's own interfaces; heavy libraries are imported where used."""
